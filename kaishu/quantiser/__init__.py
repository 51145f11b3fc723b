"""`kaishu quantize`: a model's linear layers as whole numbers with a scale for each group of 32 weights.

    rounding.py      32 weights → their scale and whole numbers, chosen by the error that they leave
    compensation.py  a whole matrix, where it is known what enters it: each column's error is made up for by the next
    plan.py          which tensors of a checkpoint are quantised, and what is left as it is
    folder.py        the folder that is written: safetensors in the form of compressed-tensors, and the files beside it
    quantise.py      a checkpoint → that folder, and a report

numpy alone; only calibration runs the reference model, which needs torch.
"""
