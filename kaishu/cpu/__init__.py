"""The model as Numba kernels: how Kaishu runs on a CPU, without torch.

Mirrors `kaishu/reference` file by file, so that the two can be read side by side; both satisfy the Executor protocol of
`kaishu/batch.py`. Weights come from `kaishu/checkpoint`, are packed for the kernels once, and are kept by store.py.
"""
