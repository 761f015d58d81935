"""Fine-tuning: heads, models, and one module a task family."""
