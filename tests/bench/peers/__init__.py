"""What `make bench` compares: stepd in its ways, and the servers that people would run instead. One module a peer."""
from peers import genai, ik, llama, stepd, vllm

KINDS = {k.name: k for k in (*stepd.KINDS, llama.Llama, ik.Ik, vllm.Vllm, genai.OpenVino)}
