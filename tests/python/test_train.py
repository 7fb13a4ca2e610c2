# SPDX-License-Identifier: Apache-2.0
"""examples/train.py as users run it, with a tiny model on gloo ranks: a mix and a folder of files, DiT and MMDiT, DDP and FSDP2, its own
workers and torchrun's; both variants agree, and what is wrong gets one sentence and a code."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import torch
import workers

SCRIPT = os.path.join(os.environ["KF_SOURCE"], "examples", "train.py")
TINY = "d=32,layers=2,heads=4"
OLD = torch.__version__.startswith("1.")


def start(*arguments, torchrun=0):
    launcher = []
    if torchrun:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(torchrun), "--master-port", str(workers.free_port())]
    return subprocess.Popen([sys.executable, "-W", "ignore", *launcher, SCRIPT, *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, universal_newlines=True)


def run(*arguments, code=0, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, (arguments, process.returncode, out, err)
    return out, err


def compare(*arguments, **options):
    out, _ = run(*arguments, "--compare", "--json", "--steps", "4", **options)
    result = json.loads(out)
    assert result["steps"] == 4 and len(result["loss"]) == 4 and result["tokens_per_s"] > 0
    both = result["compare"]
    assert both["loss_max_rel_diff"] <= 1e-5 and both["param_rel_diff"] <= 1e-4, both
    assert both["max_over_mean_before"] >= 1 and both["realised"] > 0 and both["speedup"] > 0
    return result


def mixes():
    tiny = ["--data", "synthetic:g1b6i256f1s0,g1b1i512f1s0", "--scale", "0.2", "--gpus"]
    assert compare("--model", TINY, *tiny, "cpu:2")["ranks"] == 2
    # One sequence holds most tokens, so that it is split.
    compare("--model", "MMDiT-" + TINY, "--data", "synthetic:g1b1i512f4s0,g1b2i256f1s0", "--scale", "0.1", "--gpus", "cpu:4")
    compare("--model", TINY, *tiny, "cpu:2", "--bags", "g2n1")
    out, err = run("--model", TINY, *tiny, "cpu:2", "--use-knapformer", "--steps", "2", "--log-level", "debug")
    assert "step    1  with" in out and "step 0" in err, (out, err)
    one, _ = run("--model", TINY, *tiny, "cpu:2", "--steps", "2", "--json")
    two, _ = run("--model", TINY, *tiny, "cpu:1", "--steps", "2", "--json")
    for a, b in zip(json.loads(one)["loss"], json.loads(two)["loss"]):
        assert abs(a - b) <= 1e-5 * a, "losses depend on the number of ranks"
    if not OLD:
        compare("--model", TINY, *tiny[:-1], torchrun=2)
        compare("--model", "MMDiT-" + TINY, *tiny, "cpu:2", "--fsdp")


def configured():
    """A file says what it says, and no more: what train.py knows of CPU ranks stays. --set wins over it."""
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "train.yaml")
        with open(config, "w") as file:
            file.write("knapformer:\n  max_chunk_size: 5000\n  bag_size: g2n1\n")

        def first_cost(name, *arguments):
            steps = os.path.join(folder, name)
            _, err = run("--model", TINY, "--data", "synthetic:g1b6i256f1s0,g1b1i512f1s0", "--scale", "0.2", "--gpus", "cpu:2", "--use-knapformer",
                         "--steps", "3", "--set", "steps_file=" + steps, "--set", "log_level=debug", *arguments)
            assert "step 0" in err, err
            with open(steps) as file:
                lines = [json.loads(line) for line in file]
            assert [line["step"] for line in lines] == [0, 1, 2]
            return lines[0]["cost"]["linear_s"], len(lines[0]["bags"])
        plain, _ = first_cost("plain")
        assert first_cost("config", "--config", config) == (plain, 1), "the cost of CPU ranks is lost"
        slower = "cluster=nodes=1,ranks_per_node=2,tflops=0.05,passes=3"
        state = "state_file=" + os.path.join(folder, "state")
        cost, bags = first_cost("set", "--config", config, "--set", "bag_size=1", "--set", slower, "--set", state)
        assert bags == 0 and abs(cost / plain - 2) < 1e-6 and os.path.getsize(os.path.join(folder, "state")) > 0
    _, err = run("--gpus", "cpu:2", "--compare", "--set", "gama=1", code=2)
    assert "gama" in err and "gamma" in err, err
    _, err = run("--model", TINY, "--gpus", "cpu:2", "--use-knapformer", "--steps", "1", "--set", "steps_file=/nowhere/steps", code=1)
    assert err.count("rank 0") == 1 and "/nowhere/steps" in err, err


def make_files(folder):
    """Images and keyframes of several sizes, a video, captions; and a broken image."""
    import av
    from PIL import Image
    for i, size in enumerate(((64, 48), (33, 80), (160, 96), (48, 48))):
        Image.new("RGB", size, (40 * i, 90, 200 - 40 * i)).save(os.path.join(folder, "a red thing %d.png" % i))
    with open(os.path.join(folder, "a red thing 0.txt"), "w") as file:
        file.write("words that say what it is")
    os.mkdir(os.path.join(folder, "frames"))
    for i in range(3):
        Image.new("RGB", (64, 64), (0, 80 * i, 9)).save(os.path.join(folder, "frames", "%d.png" % i))
    with av.open(os.path.join(folder, "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(9):
            frame = av.VideoFrame.from_image(Image.new("RGB", (64, 48), (25 * i, 0, 99)))
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    with open(os.path.join(folder, "broken.png"), "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n and then nothing")


def folders():
    with tempfile.TemporaryDirectory() as folder:
        _, err = run("--data", folder, "--gpus", "cpu:2", code=2)
        assert "has no images" in err and err.count("\n") == 1, err
        make_files(folder)
        out, err = run("--model", TINY, "--data", folder, "--batch-size", "2", "--gpus", "cpu:2", "--use-knapformer", "--steps", "4")
        assert "5 images, 1 keyframe folders, 1 videos" in out, out
        assert "broken.png" in err and "skipped" in err, err
        compare("--model", "MMDiT-" + TINY, "--data", folder, "--batch-size", "2", "--gpus", "cpu:2", "--max-tokens", "20")


def misuse():
    for words, arguments in ((["9"], ["--gpus", "9"]), (["DiT-Q"], ["--model", "DiT-Q"]), (["nothing"], ["--data", "nothing"]),
                             (["noname"], ["--data", "synthetic:noname"]), (["g3n1", "2"], ["--bags", "g3n1", "--compare"]),
                             (["nofile"], ["--config", "nofile", "--compare"]), (["--steps"], ["--steps", "0"])):
        _, err = run(*(["--gpus", "cpu:2"] if arguments[0] != "--gpus" else []), *arguments, code=2)
        assert all(word in err for word in words) and "Traceback" not in err, err
    if OLD:
        _, err = run("--gpus", "cpu:2", "--fsdp", code=2)
        assert "FSDP2" in err, err


def killed():
    """A rank that is killed ends the run, with a reason."""
    process = start("--model", TINY, "--data", "synthetic:g1b6i256f1s0", "--scale", "0.2", "--gpus", "cpu:2", "--steps", "100000", "--use-knapformer")
    while "step    0" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    children = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], stdout=subprocess.PIPE, universal_newlines=True)
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and re.search(r"train.py: rank \d", err), (process.returncode, err)
    end = time.monotonic() + 60
    while subprocess.run(["pgrep", "-g", str(os.getpgid(0)), "-f", "spawn_main"], stdout=subprocess.PIPE).stdout:
        assert time.monotonic() < end, "processes are left"


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    mixes()
    configured()
    folders()
    misuse()
    killed()
    print("ok")
