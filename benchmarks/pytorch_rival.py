"""MOOSE in plain PyTorch, for comparison only: what a careful researcher would write at first.

Nothing here is shared with the package: sizes, weights and scales come in as NumPy arrays, and the
equations are written anew. It is eager PyTorch with the customary economies: the ensemble is one
batched matrix product, the state is carried standardised, and nothing but the policy asks for
gradients. Two kinds of plants are covered: the Industrial Benchmark, whose steerings and reward are
known and whose signals are predicted directly, and plants of which nothing is known, whose signals'
changes and reward are predicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

STEERING_STEP = (1.0, 10.0, 20.0 * 0.25881904510252074 / 0.9)

Layers = Sequence[tuple[np.ndarray, np.ndarray]]
"""(weight [inputs, outputs], bias [outputs]) of each layer; with a leading axis for an ensemble."""


class Scale(NamedTuple):
    """Statistics of columns."""

    mean: np.ndarray
    deviation: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray


class Given(NamedTuple):
    """Everything that the search takes as it is."""

    policy: Layers
    members: Layers
    rewards: Layers | None
    """Learned rewards on (state, action, next frame); None for the Industrial Benchmark."""
    encoder: Layers
    """Hidden layer, and the head of the latents' means."""
    decoder: Layers
    frame: Scale
    action: Scale
    support_action: Scale
    target: Scale
    predicted: Scale
    reward: Scale


class Objective(NamedTuple):
    """The numbers in the loss."""

    horizon: int
    discount: float
    return_weight: float
    pessimism: float


class Search(nn.Module):
    """The policy's loss: imagined trajectories in K models, return and support penalty."""

    def __init__(self, given: Given, objective: Objective, dtype: torch.dtype) -> None:
        super().__init__()
        self.objective = objective
        self.policy = make_network(given.policy, dtype)
        self.encoder = make_network(given.encoder, dtype).requires_grad_(False)
        self.decoder = make_network(given.decoder, dtype).requires_grad_(False)
        self.members, self.rewards = (
            [
                (torch.tensor(weight, dtype=dtype), torch.tensor(bias, dtype=dtype)[:, None])
                for weight, bias in layers
            ]
            for layers in (given.members, given.rewards or [])
        )
        for name in ("frame", "action", "support_action", "target", "predicted", "reward"):
            values = [torch.tensor(value, dtype=dtype) for value in getattr(given, name)]
            setattr(self, name, Scale(*values))
        self.steering_step = torch.tensor(STEERING_STEP, dtype=dtype)
        self.advance: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]] = self.step

    def loss(self, starts: Tensor) -> Tensor:
        """−λ E[R] + (1 − λ) E[P], returns summed and penalties averaged; raw starts [N, F, n]."""
        num_members, num_starts = len(self.members[0][0]), len(starts)
        frame = starts[:, 0].repeat(num_members, 1)
        state = ((starts - self.frame.mean) / self.frame.deviation).reshape(num_starts, -1)
        state = state.repeat(num_members, 1)
        returns = torch.zeros(len(state), dtype=state.dtype)
        penalty = torch.zeros((), dtype=state.dtype)
        for time in range(self.objective.horizon):
            state, frame, rewards, penalties = self.advance(state, frame)
            returns = returns + self.objective.discount**time * rewards
            penalty = penalty + penalties.mean()
        returns = returns.view(num_members, num_starts)
        pessimism, weight = self.objective.pessimism, self.objective.return_weight
        value = (pessimism * returns.amin(0) + (1 - pessimism) * returns.mean(0)).mean()
        return -weight * value + (1 - weight) * penalty / self.objective.horizon

    def step(self, state: Tensor, frame: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One step of all trajectories.

        Args:
            state: Standardised history [K·N, F·n], newest frame first.
            frame: Its newest frame, raw [K·N, n].

        Returns:
            Next state, next frame, standardised reward [K·N], penalty of (state, action) [K·N].
        """
        action = torch.tanh(self.policy(state))
        inputs = torch.cat([state, (action - self.action.mean) / self.action.deviation], 1)
        output = predict(self.members, inputs) * self.target.deviation + self.target.mean
        if self.rewards:
            next_frame, newest, reward = self.unknown_plant(inputs, frame, output)
        else:
            next_frame, newest, reward = self.industrial_benchmark(action, frame, output)
        reward = (reward - self.reward.mean) / self.reward.deviation
        pair = torch.cat(
            [state, (action - self.support_action.mean) / self.support_action.deviation], 1
        )
        penalty = (self.decoder(self.encoder(pair)) - pair).square().mean(1)
        kept = state[:, : state.shape[1] - frame.shape[1]]
        return torch.cat([newest, kept], 1), next_frame, reward, penalty

    def industrial_benchmark(
        self, action: Tensor, frame: Tensor, output: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Next frame, the same standardised, and reward."""
        predicted = torch.clamp(output, self.predicted.minimum, self.predicted.maximum)
        steerings = torch.clamp(frame[:, 1:4] + self.steering_step * action, 0.0, 100.0)
        next_frame = torch.cat([frame[:, :1], steerings, predicted], 1)
        newest = (next_frame - self.frame.mean) / self.frame.deviation
        return next_frame, newest, -(3.0 * predicted[:, 0] + predicted[:, 1]) / 100.0

    def unknown_plant(
        self, inputs: Tensor, frame: Tensor, output: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Next frame, the same standardised, and reward."""
        next_frame = torch.clamp(frame + output, self.predicted.minimum, self.predicted.maximum)
        newest = (next_frame - self.frame.mean) / self.frame.deviation
        reward = predict(self.rewards, torch.cat([inputs, newest], 1))[:, 0]
        reward = reward * self.reward.deviation + self.reward.mean
        return next_frame, newest, torch.clamp(reward, self.reward.minimum, self.reward.maximum)


def predict(members: Sequence[tuple[Tensor, Tensor]], inputs: Tensor) -> Tensor:
    """Standardised outputs [K·N, m] of K members for inputs [K·N, i], N for each."""
    *hidden, (weight, bias) = members
    outputs = inputs.view(len(weight), -1, inputs.shape[1])
    for hidden_weight, hidden_bias in hidden:
        outputs = torch.relu(torch.baddbmm(hidden_bias, outputs, hidden_weight))
    return torch.baddbmm(bias, outputs, weight).view(len(inputs), -1)


def make_update(
    search: Search, starts: Tensor, optimiser_name: str, learning_rate: float
) -> Callable[[], Tensor]:
    """One step of gradient descent on the policy; each call makes one and returns the loss."""
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimiser_name]
    optimiser = kind(search.policy.parameters(), lr=learning_rate)

    def update() -> Tensor:
        optimiser.zero_grad()
        loss = search.loss(starts)
        loss.backward()
        optimiser.step()
        return loss

    return update


def policy_gradient(search: Search, starts: Tensor) -> tuple[float, list[np.ndarray]]:
    """Loss, and its gradient in the order and layout of ``Given.policy``."""
    loss = search.loss(starts)
    gradients = torch.autograd.grad(loss, list(search.policy.parameters()))
    return float(loss), [gradient.numpy().T for gradient in gradients]


def make_network(layers: Layers, dtype: torch.dtype) -> nn.Sequential:
    """Linear layers with ReLU between them, and the given weights."""
    modules: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(*weight.shape, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(weight.T))
            linear.bias.copy_(torch.tensor(bias))
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


class EnsembleFit:
    """K weight-normalised networks trained together on standardised inputs and targets.

    Args:
        directions: (direction [K, inputs, outputs], bias [K, outputs]) of each layer.
        inputs: [M, inputs].
        targets: [M, outputs].
        batch_size: Transitions in a batch.
        learning_rate: Step size of Adam.
    """

    def __init__(
        self,
        directions: Layers,
        inputs: np.ndarray,
        targets: np.ndarray,
        batch_size: int,
        learning_rate: float,
    ) -> None:
        self.inputs, self.targets = torch.tensor(inputs), torch.tensor(targets)
        self.batch_size = batch_size
        self.layers = []
        for direction, bias in directions:
            layer = [torch.tensor(direction), torch.tensor(bias)[:, None]]
            layer.append(layer[0].norm(dim=1, keepdim=True))
            self.layers.append([parameter.requires_grad_() for parameter in layer])
        self.optimiser = torch.optim.Adam(itertools.chain(*self.layers), lr=learning_rate)

    def run_epoch(self) -> float:
        """One pass in an order of each member's own; returns the mean loss of a member."""
        num_members, count = len(self.layers[0][0]), len(self.inputs)
        orders = torch.stack([torch.randperm(count) for _ in range(num_members)])
        total, num_batches = 0.0, count // self.batch_size
        for batch in range(num_batches):
            chosen = orders[:, batch * self.batch_size : (batch + 1) * self.batch_size]
            self.optimiser.zero_grad()
            errors = self.predict(self.inputs[chosen]) - self.targets[chosen]
            loss = errors.square().mean((1, 2)).sum()
            loss.backward()
            self.optimiser.step()
            total += float(loss) / num_members
        return total / num_batches

    def predict(self, inputs: Tensor) -> Tensor:
        """[K, B, outputs] for inputs [K, B, inputs]."""
        for index, (direction, bias, gain) in enumerate(self.layers):
            weight = direction * (gain / direction.norm(dim=1, keepdim=True))
            inputs = torch.baddbmm(bias, inputs, weight)
            if index < len(self.layers) - 1:
                inputs = torch.relu(inputs)
        return inputs


class ModelsFit:
    """Models of signals and, where it is not known, of the reward, fitted side by side."""

    def __init__(self, fits: Sequence[EnsembleFit]) -> None:
        self.fits = fits

    def run_epoch(self) -> float:
        """One pass of each; returns the sum of their mean losses."""
        return sum(fit.run_epoch() for fit in self.fits)


class AutoencoderFit:
    """The variational autoencoder of the support, trained on standardised pairs [M, D].

    Args:
        hidden: The encoder's hidden layer.
        heads: The heads of the latents' means and log-deviations.
        decoder: The decoder.
        pairs: [M, D].
        kl_weight: Weight of the mean KL.
        batch_size: Pairs in a batch.
        learning_rate: Step size of Adam.
    """

    def __init__(
        self,
        hidden: Layers,
        heads: Layers,
        decoder: Layers,
        pairs: np.ndarray,
        kl_weight: float,
        batch_size: int,
        learning_rate: float,
    ) -> None:
        self.pairs, self.kl_weight, self.batch_size = torch.tensor(pairs), kl_weight, batch_size
        self.num_latents = heads[0][1].shape[-1]
        self.hidden = make_network(hidden, torch.float32)
        self.mean_head, self.deviation_head = (
            make_network([head], torch.float32) for head in heads
        )
        self.decoder = make_network(decoder, torch.float32)
        networks = nn.ModuleList([self.hidden, self.mean_head, self.deviation_head, self.decoder])
        self.optimiser = torch.optim.Adam(networks.parameters(), lr=learning_rate)

    def run_epoch(self) -> float:
        """One pass in random order; returns the mean loss."""
        order, total = torch.randperm(len(self.pairs)), 0.0
        num_batches = len(self.pairs) // self.batch_size
        for batch in range(num_batches):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            self.optimiser.zero_grad()
            pairs = self.pairs[chosen]
            loss = self.loss(pairs, torch.randn(len(pairs), self.num_latents))
            loss.backward()
            self.optimiser.step()
            total += float(loss)
        return total / num_batches

    def loss(self, pairs: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error plus the weighted mean KL; noise [B, latents] is standard normal."""
        hidden = torch.relu(self.hidden(pairs))
        mean, log_deviation = self.mean_head(hidden), self.deviation_head(hidden).clamp(-4.0, 15.0)
        latents = mean + log_deviation.exp() * noise
        kl = -0.5 * (1.0 + 2.0 * log_deviation - mean.square() - (2.0 * log_deviation).exp())
        errors = self.decoder(latents) - pairs
        return errors.square().mean() + self.kl_weight * kl.mean()
