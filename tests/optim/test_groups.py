"""Parameter groups: each variable in exactly one."""

import pytest

from albert_tf.errors import UserError
from albert_tf.optim.groups import assign_decay


def test_leftovers_and_doubles_are_listed():
  with pytest.raises(UserError, match=r"lora/A \(no group\); x/bias/kernel \(decayed, excluded\)"):
    assign_decay(["bert/pooler/dense/kernel", "lora/A", "x/bias/kernel"])
