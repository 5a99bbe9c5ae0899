#pragma once
/// Everything of the core in one include.

#include "plait/activation.h"
#include "plait/alltoallv_gmm.h"
#include "plait/context.h"
#include "plait/counters.h"
#include "plait/env.h"
#include "plait/fused_expert.h"
#include "plait/group.h"
#include "plait/grouped_matmul.h"
#include "plait/layer.h"
#include "plait/permute.h"
#include "plait/router.h"
#include "plait/routing.h"
#include "plait/status.h"
#include "plait/tensor.h"
#include "plait/version.h"
