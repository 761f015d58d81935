"""What commands share: flags made from settings, start-up of TensorFlow, the check of a machine."""
