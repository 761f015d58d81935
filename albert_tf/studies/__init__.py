"""The paper lab: every table and figure of the ALBERT paper as a study that one command runs at any scale."""
