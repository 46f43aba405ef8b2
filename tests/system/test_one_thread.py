"""One thread of torch for a while: the number comes back, also where several threads ask at once."""

import threading

import torch

from fheat.system.threads import one_thread, usual_threads


def test_the_number_comes_back_whoever_leaves_last():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    inside, leave = threading.Event(), threading.Event()
    found = {}

    def elsewhere():
        with one_thread():  # torch is new to this thread, which takes over the one thread of the body outside
            inside.set()
            leave.wait()
        found["after"] = torch.get_num_threads()

    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            assert usual_threads() == 3
            thread = threading.Thread(target=elsewhere)
            thread.start()
            inside.wait()
        assert torch.get_num_threads() == usual_threads() == 3
        leave.set()
        thread.join()
        assert found == {"after": 3}
        assert torch.get_num_threads() == usual_threads() == 3
    finally:
        torch.set_num_threads(before)
