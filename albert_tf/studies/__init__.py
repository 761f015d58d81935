"""The paper lab: each table and figure of the ALBERT paper as a study, which one command runs."""
