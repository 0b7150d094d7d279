// Marks functions that host and device share. Device code defines HPMOE_DEVICE before it includes this file.
#pragma once

#ifndef HPMOE_DEVICE
#define HPMOE_DEVICE
#endif
