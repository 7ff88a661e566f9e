"""Two processes train one policy: same weights on both, different noise, one global loss."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import forking

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from tiny_ppo import iterations_of, steps_of, tiny_trainer, weights_of
folder = Path(sys.argv[1])
trainer = tiny_trainer(folder, rollout_batch_size=4, ddp_backend="gloo", ddp_find_unused_parameters=False)
assert trainer.args.world_size == 2
trainer.train()
evaluation = trainer.evaluate()
rank = trainer.args.process_index
(folder / f"rank{rank}.json").write_text(json.dumps({
    "weights": {name: float(w.double().sum()) for name, w in weights_of(trainer).items()},
    "responses": trainer.last_rollout.responses.tolist(),
    "prompts": trainer.last_rollout.input_ids.tolist(),
    "iterations": iterations_of(trainer),
    "losses": [row["loss"] for row in steps_of(trainer)],
    "coefficient": trainer.kl_controller.value,
    "evaluation": evaluation["eval_reward"],
}))
"""


def test_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [forking.python(), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert one["weights"] == two["weights"]
    assert one["losses"] == two["losses"]
    assert one["coefficient"] == two["coefficient"]
    assert one["evaluation"] == two["evaluation"]
    assert one["responses"] != two["responses"]
    assert one["prompts"] != two["prompts"]
    for a, b in zip(one["iterations"], two["iterations"], strict=True):
        assert {k: v for k, v in a.items() if "time" not in k} == {k: v for k, v in b.items() if "time" not in k}
        assert a["first_kl_max_abs"] == 0.0
        # What is logged is the policy loss of all ranks together: on the first update its mean is about 0.
        assert a["tokens_response"] > 4 * 6
