"""Training in ten lines with mamba_ssm's import: predict the previous token at every position."""
import torch
from mamba_ssm import Mamba

torch.manual_seed(0)
embed, mamba, head = torch.nn.Embedding(4, 32), Mamba(d_model=32), torch.nn.Linear(32, 4)
optimiser = torch.optim.Adam([*embed.parameters(), *mamba.parameters(), *head.parameters()], lr=1e-2)
for step in range(60):
    tokens = torch.randint(0, 4, (16, 24))
    logits = head(mamba(embed(tokens)))[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())
    optimiser.zero_grad(), loss.backward(), optimiser.step()
    if step % 20 == 19:
        print("step %2d  loss %.3f" % (step + 1, loss.item()))
assert loss.item() < 0.7, "chance is 1.386"
