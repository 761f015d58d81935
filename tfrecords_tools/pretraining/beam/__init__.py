"""Makes records on Apache Beam."""
