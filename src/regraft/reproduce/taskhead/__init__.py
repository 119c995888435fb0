"""The experiments of paper 004, How to prepare your task head for finetuning."""
