"""Makes records on this machine or on a share of several: processes, notes of what is finished."""
