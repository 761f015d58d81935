"""A stand-in of `gcloud` for docs/tpu.md, which keeps resources by name and zone, and refuses unknown ones.

State is a JSON file, `$GCLOUD_STATE`. A machine is preempted while its first `ssh --command` trains; then so many
`create --spot` as `refusals` says find no capacity. `tpu$` lines come as `ssh --on-tpu`, in which only the variables
of the copied `tpu.env` have values.
"""

import json
import os
import pathlib
import re
import sys

# The flags that each command takes.
FLAGS = {
  "auth login": "", "config set": "", "services enable": "", "storage cp": "", "storage rm": "", "storage ls": "",
  "storage buckets": "location soft-delete-duration",
  "tpu-vm create": "zone accelerator-type version spot",
  "tpu-vm ssh": "zone worker command on-tpu",
  "tpu-vm describe": "zone format",
  "tpu-vm delete": "zone quiet",
  "tpu-vm scp": "zone", "tpu-vm list": "zone", "queued-resources list": "zone",
  "queued-resources create": "zone accelerator-type runtime-version node-id spot",
  "queued-resources delete": "zone quiet force",
}  # fmt: skip


def need(condition, problem):
  if not condition:
    sys.exit(f"gcloud: {problem}: {' '.join(sys.argv[1:])}")


def split(words):
  """Positional words, and flags with their values."""
  flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
  return [word for word in words if not word.startswith("-")], flags


def bucket_of(url):
  return url.removeprefix("gs://").partition("/")[0]


def storage(state, verb, words, flags):
  buckets, objects = state["buckets"], state["objects"]
  if verb == "buckets":
    name = bucket_of(words[1])
    need(words[0] == "create" and name not in buckets, "the bucket exists")
    kept = flags.get("soft-delete-duration", "7d") != "0"
    buckets[name] = {"location": flags["location"], "kept": kept}
  elif verb == "cp":
    *sources, target = words
    for source in sources:
      if source.startswith("gs://"):
        need(any(f"{name}/".startswith(f"{source}/") for name in objects), "no such object")
        pathlib.Path(target, source.rpartition("/")[2]).touch()
        continue
      need(bucket_of(target) in buckets, "no such bucket")
      need(pathlib.Path(source).exists(), "no such file")
      objects += [target + path.as_posix() for path in pathlib.Path(source).rglob("*")]
  elif verb == "rm":
    name = bucket_of(words[0])
    need(name in buckets, "no such bucket")
    if not buckets.pop(name)["kept"]:
      state["objects"] = [url for url in objects if bucket_of(url) != name]


def on_machine(state, machine, command, zone):
  """A command in the shell of a TPU VM."""
  for name in re.findall(r"\$(\w+)", command):
    need(f"{name}=" in machine["env"], f"${name} is not set on the VM")
  values = dict(re.findall(r"(\w+)=(\S+)", machine["env"]))
  command = re.sub(r"\$(\w+)", lambda match: values[match[1]], command)
  machine["cloned"] |= "git clone" in command
  if "run_pretrain.py" in command:
    need(machine["cloned"], "the VM has no such program")
    need(values["ZONE"] == zone, "the VM has another zone's name")
    if inputs := re.search(r'--input_file="?([^*" ]+)', command):
      need(any(name.startswith(inputs[1]) for name in state["objects"]), "the VM finds no records")
      state["objects"].append(re.search(r"--output_dir=(\S+)", command)[1] + "/curves.png")


def tpu(state, kind, verb, words, flags):
  need("tpu.googleapis.com" in state["services"], "the API has not been enabled")
  zone = flags["zone"]
  machines, queued = state["machines"], state["queued"]
  of_kind = machines if kind == "tpu-vm" else queued
  own = [key for key in of_kind if key.startswith(f"{zone}/")]
  if verb == "list":
    print("\n".join(own))
    return None
  name = words[-1].partition(":")[0]
  key = f"{zone}/{name}"
  if verb == "create":
    need(key not in own, "the name is taken")
    if "spot" in flags and state["refusals"]:
      state["refusals"] -= 1
      return "no more capacity"
    if kind == "queued-resources":
      queued[key] = key = f"{zone}/{flags['node-id']}"
    image = flags.get("version") or flags.get("runtime-version")
    need(flags["accelerator-type"] and image, "no type or image")
    regions = {bucket["location"] for bucket in state["buckets"].values()}
    need(zone.rpartition("-")[0] in regions, "the bucket is in another region")
    machines[key] = {"state": "READY", "env": "", "cloned": False}
    return None
  need(key in own, f"not found in {zone}")
  if verb == "delete":
    need(kind == "tpu-vm" or queued[key] not in machines, "its VM exists")
    of_kind.pop(key)
  elif verb == "describe":
    print(machines[key]["state"])
  else:
    need(machines[key]["state"] == "READY", "the VM is not ready")
    if verb == "scp":
      machines[key]["env"] = pathlib.Path(words[0]).read_text()
    elif "run_pretrain.py" in flags.get("command", "") and not state["preempted"]:
      state["preempted"], machines[key]["state"] = True, "PREEMPTED"
      return "preempted"
    else:
      on_machine(state, machines[key], flags.get("command") or flags.get("on-tpu", ""), zone)
  return None


def main():
  path = pathlib.Path(os.environ["GCLOUD_STATE"])
  state = json.loads(path.read_text())
  words, flags = split(sys.argv[1:])
  if words[:2] == ["compute", "tpus"]:
    words = words[2:]
  area, verb, *words = words
  known = FLAGS.get(f"{area} {verb}")
  need(known is not None and set(flags) <= set(known.split()), "unknown command or flag")
  status = None
  if area == "storage":
    storage(state, verb, words, flags)
  elif area == "services":
    state["services"] += words
  elif area in ("tpu-vm", "queued-resources"):
    status = tpu(state, area, verb, words, flags)
  path.write_text(json.dumps(state))
  sys.exit(status)


if __name__ == "__main__":
  main()
