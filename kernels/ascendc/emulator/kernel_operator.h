// The part of the Ascend C API that the kernel uses, executed on a CPU: see README.md beside this folder.
#pragma once

#include "copies.h"
#include "cube.h"
#include "cube_mx.h"
#include "fp8.h"
#include "gather.h"
#include "int8.h"
#include "integers.h"
#include "queues.h"
#include "sorting.h"
#include "sync.h"
#include "tensors.h"
#include "vector.h"
