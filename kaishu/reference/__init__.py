"""The model by hand, in PyTorch: the specification, one operation per file.

Read it in this order: norm, linear, rope, attention, feed_forward, experts, block, model; then caches and generate.
The only folder that imports torch. Opened with `Model.from_checkpoint`, driven by generate.py or executor.py.
"""
