"""router.replay in the Ascend kernel, on its emulator."""

import numpy as np
import router_oracle as oracle
from ascend_helpers import emulator
from mindspore import Tensor

import hpmoe
from hpmoe import router


def test_the_ascend_kernel_replays_a_record():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((20, 8)).astype(np.float32)
    record = rng.random((20, 3, 8)).argsort(-1)[..., :3].astype(np.int32)
    record[rng.random(record.shape) < 0.5] = -1

    def replayed(z, record):
        ids = router.replay(hpmoe.route(z, 3)[0], record, unset="route", layer=1)
        return ids, router.weigh(z, ids)
    ids, weights = emulator(replayed)(Tensor(z), Tensor(record))
    want = oracle.replay(oracle.route(z, 3)[0], record[:, 1], "route")
    np.testing.assert_array_equal(ids.asnumpy(), want)
    np.testing.assert_allclose(weights.asnumpy(), oracle.weigh(z, want), rtol=1e-5)
