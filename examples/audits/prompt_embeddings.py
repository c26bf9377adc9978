"""What a client of an API sends in place of a prompt: the embeddings of its tokens.

python prompt_embeddings.py MODEL_FOLDER wire "My PIN is 4711" "Call me at noon"
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from simsplit import transcribe


def embed_prompts(model: Path, wire: Path, prompts: list[str]) -> None:
    """Embed prompts with a model's own table, and transcribe what would be sent."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    table = AutoModelForCausalLM.from_pretrained(model).get_input_embeddings()
    texts = [tokenizer(each, return_tensors="pt").input_ids[0] for each in prompts]
    length = min(map(len, texts))  # of one length, as one request has them
    ids = torch.stack([each[:length] for each in texts])
    with torch.no_grad():
        sent = table(ids)
    transcribe(wire, smashed=sent, inputs=ids, modality="texts", content={"smashed": "embeddings"})


if __name__ == "__main__":
    embed_prompts(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
