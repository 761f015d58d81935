"""The search for copies of documents on Apache Beam: the same hashes, so the same copies."""

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np

from tfrecords_tools.pretraining.duplicates import hash_file
from tfrecords_tools.pretraining.job import Job

_Place = tuple[int, int]  # Number of the file, number of the document in it.


def search(file_numbers: Any, job: Job) -> None:
  """Adds the steps that write the numbers of the copies of each file into `job.duplicates`."""
  _ = (
    file_numbers
    | "hash" >> beam.FlatMap(_hash, job)
    | "equal ones" >> beam.GroupByKey()
    | "all but the first" >> beam.FlatMap(_later)
    | "by file" >> beam.GroupByKey()
    | "write" >> beam.Map(_write, job)
  )


def _hash(file_index: int, job: Job) -> Iterator[tuple[bytes, _Place]]:
  for number, digest in enumerate(hash_file(job.paths[file_index], job.options)):
    yield digest, (file_index, number)


def _later(element: tuple[bytes, Iterable[_Place]]) -> Iterator[_Place]:
  _, places = element  # Of a very frequent document they are read twice, not held.
  first = min(places)
  return (place for place in places if place != first)


def _write(element: tuple[int, Iterable[int]], job: Job) -> None:
  file_index, numbers = element
  job.duplicates.write(file_index, np.fromiter(numbers, np.uint32))
