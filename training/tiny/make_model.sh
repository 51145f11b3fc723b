#!/usr/bin/env bash
# Trains the bundled model with its tokenizer: bash training/tiny/make_model.sh RUN_FOLDER   (under two hours on two cores)
# Each part gives more to the skills that the one before didn't learn; world.py has the shares.
set -euo pipefail
here=$(dirname "$0")
out=$1
python "$here/train.py" --out "$out" --part 1 --steps 3300 --stop-at 1500
python "$here/train.py" --out "$out" --part 2 --steps 2850 --resume
python "$here/train.py" --out "$out" --part 3 --steps 3600 --resume
python "$here/train.py" --out "$out" --part 4 --steps 3900 --resume
python "$here/evaluate.py"
