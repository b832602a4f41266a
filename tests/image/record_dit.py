"""Further passes of the tiny diffusion transformers in tests/data/image: sides that differ, odd numbers of patches,
longer prompts. Run with diffusers 0.42.1 and torch 2.13 (CPU):

    python3 tests/image/record_dit.py tests/data/image

Also whole pictures from text, through the pipelines. Inputs come from seeds; weights are the folders' own. Writes dit.safetensors beside them."""
import inspect
import sys

import torch
import diffusers.pipelines.qwenimage.pipeline_qwenimage_img2img as q_edit
import diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3_img2img as sd3_edit
import diffusers.pipelines.z_image.pipeline_z_image_img2img as z_edit
from diffusers import (QwenImageImg2ImgPipeline, QwenImagePipeline, QwenImageTransformer2DModel, SD3Transformer2DModel,
                       StableDiffusion3Img2ImgPipeline, StableDiffusion3Pipeline, ZImageImg2ImgPipeline, ZImagePipeline,
                       ZImageTransformer2DModel)
from safetensors.torch import save_file
from transformers import CLIPTokenizer, PreTrainedTokenizerFast, T5Tokenizer


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


def sd3(root, out, name, h, w, n_tok, t, seed):
    m = SD3Transformer2DModel.from_pretrained(f"{root}/sd3/transformer").float().eval()
    lat, txt, pooled = rnd((1, 4, h, w), seed), rnd((1, n_tok, 64), seed + 1), rnd((1, 48), seed + 2)
    v = m(hidden_states=lat, timestep=torch.tensor([t]), encoder_hidden_states=txt, pooled_projections=pooled, return_dict=False)[0]
    out.update({f"{name}.latent": lat[0], f"{name}.states": txt[0], f"{name}.pooled": pooled[0], f"{name}.timestep": torch.tensor([t]),
                f"{name}.out": v[0]})


def sd3_pipe(root, **kw):
    tok = [CLIPTokenizer.from_pretrained(f"{root}/sd3/{d}") for d in ("tokenizer", "tokenizer_2")]
    t5 = T5Tokenizer.from_pretrained(f"{root}/sd3/tokenizer_3")
    return StableDiffusion3Pipeline.from_pretrained(f"{root}/sd3", torch_dtype=torch.float32, tokenizer=tok[0], tokenizer_2=tok[1],
                                                    tokenizer_3=t5, **kw)


def picture(out, name, pipe, w, h, seed, steps, **kw):
    """From text to pixels; noise as torch's CPU generator draws it."""
    pipe.set_progress_bar_config(disable=True)
    r = pipe(width=w, height=h, num_inference_steps=steps, generator=torch.Generator().manual_seed(seed), output_type="np", **kw)
    out[f"{name}.image"] = torch.as_tensor(r.images[0]).float()


def edited(out, name, cls, module, pipe, w, h, seed, steps, strength, **kw):
    """From a picture of our own; of what the autoencoder sees the mean is taken, not a sample."""
    module.retrieve_latents = lambda o, **_: o.latent_dist.mode()
    own = {k: v for k, v in pipe.components.items() if k in inspect.signature(cls.__init__).parameters}
    x, y, c = torch.arange(w), torch.arange(h)[:, None], torch.arange(3)[:, None, None]
    image = ((x * 7 + y * 13 + c * 50) % 256).float() / 255
    picture(out, name, cls(**own), w, h, seed, steps, image=image[None], strength=strength, **kw)


def load(cls, root, tokenizer):
    pipe = cls.from_pretrained(root, torch_dtype=torch.float32, tokenizer=tokenizer)
    return pipe


def main():
    root, out = sys.argv[1], {}
    with torch.no_grad():
        qwen(root, out, "qwen.a", 10, 6, 21, 731.5, 11)
        qwen(root, out, "qwen.b", 4, 14, 3, 88.25, 21)
        zimage(root, out, "z.a", 10, 6, 37, 644.0, 31)   # 15 patches, filled to 32; 37 tokens, filled to 64
        zimage(root, out, "z.b", 4, 18, 32, 250.5, 41)   # 18 patches; no filling of the text
        tok = PreTrainedTokenizerFast.from_pretrained(f"{root}/qwen-image/tokenizer")
        pipe = load(QwenImagePipeline, f"{root}/qwen-image", tok)
        picture(out, "qwen.c", pipe, 56, 40, 42, 4, prompt="a red cat on a mat", negative_prompt=" ", true_cfg_scale=4.0)
        picture(out, "qwen.d", pipe, 32, 64, 7, 3, prompt="two blue birds, in the rain; 12 drops", true_cfg_scale=1.0)
        edited(out, "qwen.e", QwenImageImg2ImgPipeline, q_edit, pipe, 40, 48, 5, 5, 0.5, prompt="a red cat on a mat",
               negative_prompt=" ", true_cfg_scale=4.0)
        tok = PreTrainedTokenizerFast.from_pretrained(f"{root}/z-image/tokenizer")
        with open(f"{root}/z-image/tokenizer/chat_template.jinja", encoding="utf-8") as f:
            tok.chat_template = f.read()
        pipe = load(ZImagePipeline, f"{root}/z-image", tok)
        picture(out, "z.c", pipe, 28, 20, 42, 4, prompt="a red cat on a mat", negative_prompt="blurry", guidance_scale=3.0)
        picture(out, "z.d", pipe, 16, 36, 7, 3, prompt="two blue birds, in the rain; 12 drops", guidance_scale=0.0)
        edited(out, "z.e", ZImageImg2ImgPipeline, z_edit, pipe, 20, 24, 5, 5, 0.5, prompt="a red cat on a mat", negative_prompt="blurry",
               guidance_scale=3.0)
        sd3(root, out, "sd3.a", 10, 6, 21, 644.0, 51)
        sd3(root, out, "sd3.b", 4, 18, 33, 88.25, 61)
        pipe = sd3_pipe(root)
        picture(out, "sd3.c", pipe, 28, 20, 42, 4, prompt="a red cat on a mat", negative_prompt="blurry", guidance_scale=4.0)
        picture(out, "sd3.d", pipe, 16, 36, 7, 3, prompt="two blue birds, in the rain; 12 drops", guidance_scale=1.0)
        edited(out, "sd3.f", StableDiffusion3Img2ImgPipeline, sd3_edit, pipe, 20, 24, 5, 5, 0.5, prompt="a red cat on a mat",
               negative_prompt="blurry", guidance_scale=4.0)
        pipe = sd3_pipe(root, text_encoder_3=None)
        picture(out, "sd3.e", pipe, 28, 20, 42, 4, prompt="a red cat on a mat", negative_prompt="blurry", guidance_scale=4.0)
    save_file({k: v.contiguous() for k, v in out.items()}, f"{root}/dit.safetensors")


main()
