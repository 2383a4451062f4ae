#pragma once
/// Everything at once.

#include "widehead/backend.h"
#include "widehead/dense_layer.h"
#include "widehead/errors.h"
#include "widehead/factored_layer.h"
#include "widehead/heads.h"
#include "widehead/matrix.h"
#include "widehead/output_layer.h"
#include "widehead/random.h"
#include "widehead/reference.h"
#include "widehead/sparse_batch.h"
#include "widehead/stabilizer.h"
#include "widehead/synthetic.h"
#include "widehead/system_info.h"
#include "widehead/verify.h"
#include "widehead/version.h"
