#!/usr/bin/env bash
# Makes the bundled model with its tokenizer: bash training/tiny/make_model.sh RUN_FOLDER   (under two hours on two cores)
set -euo pipefail
here=$(dirname "$0")
python "$here/make_tokenizer.py"
python "$here/train.py" --out "$1" --steps 4500
python "$here/train.py" --out "$1" --steps 4820 --resume
python "$here/evaluate.py"
