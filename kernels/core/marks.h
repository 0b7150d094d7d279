// How functions that host and device share are marked: a device kernel says so before it includes this.
#pragma once

#ifndef HPMOE_DEVICE
#define HPMOE_DEVICE
#endif
