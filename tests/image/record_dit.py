"""Further passes of the tiny diffusion transformers in tests/data/image: sides that differ, odd numbers of patches,
longer prompts. Run with diffusers 0.42.1 and torch 2.13 (CPU):

    python3 tests/image/record_dit.py tests/data/image

Inputs come from seeds; weights are the folders' own. Writes dit.safetensors beside them."""
import sys

import torch
from diffusers import QwenImageTransformer2DModel, ZImageTransformer2DModel
from safetensors.torch import save_file


def rnd(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qwen(root, out, name, h, w, n_tok, t, seed):
    m = QwenImageTransformer2DModel.from_pretrained(f"{root}/qwen-image/transformer").float().eval()
    lat, txt = rnd((1, 4, h, w), seed), rnd((1, n_tok, 32), seed + 1)
    packed = lat.view(1, 4, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(1, h * w // 4, 16)
    v = m(hidden_states=packed, timestep=torch.tensor([t]) / 1000, encoder_hidden_states=txt,
          encoder_hidden_states_mask=None, img_shapes=[[(1, h // 2, w // 2)]], return_dict=False)[0]
    v = v.view(1, h // 2, w // 2, 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(4, h, w)
    out.update({f"{name}.latent": lat[0], f"{name}.states": txt[0], f"{name}.timestep": torch.tensor([t]), f"{name}.out": v})


def zimage(root, out, name, h, w, n_tok, t, seed):
    m = ZImageTransformer2DModel.from_pretrained(f"{root}/z-image/transformer").float().eval()
    lat, txt = rnd((4, h, w), seed), rnd((n_tok, 32), seed + 1)
    v = m([lat.unsqueeze(1)], torch.tensor([(1000 - t) / 1000]), [txt], return_dict=False)[0][0]
    out.update({f"{name}.latent": lat, f"{name}.states": txt, f"{name}.timestep": torch.tensor([t]), f"{name}.out": -v[:, 0]})


def main():
    root, out = sys.argv[1], {}
    with torch.no_grad():
        qwen(root, out, "qwen.a", 10, 6, 21, 731.5, 11)
        qwen(root, out, "qwen.b", 4, 14, 3, 88.25, 21)
        zimage(root, out, "z.a", 10, 6, 37, 644.0, 31)   # 15 patches, filled to 32; 37 tokens, filled to 64
        zimage(root, out, "z.b", 4, 18, 32, 250.5, 41)   # 18 patches; no filling of the text
    save_file({k: v.contiguous() for k, v in out.items()}, f"{root}/dit.safetensors")


main()
