"""Work beside other work: on a CPU it is done at once; tests/gpu has the streams and the graphs."""

import torch

from fheat.system.capture import beside


def test_on_a_cpu_work_beside_other_work_is_done_at_once_and_once():
    order = []

    def run():
        order.append("run")
        return torch.ones(2)

    join = beside(run, torch.device("cpu"))
    order.append("between")
    assert torch.equal(join(), torch.ones(2))
    assert order == ["run", "between"]
