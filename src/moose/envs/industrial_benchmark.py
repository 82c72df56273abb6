"""The Industrial Benchmark as pure functions: one plant, one step, no hidden randomness.

The plant of Hein et al. 2017 (arXiv 1709.09480). A controller nudges velocity, gain and shift; the
plant answers with fatigue and consumption, which are noisy, delayed and depend on hidden states.

Every function treats a single plant; batch it with ``jax.vmap`` and run it with ``jax.lax.scan``::

    state = reset(70.0, draw_noise(key))
    state = step(state, action, draw_noise(next_key))
    frame = observe(state)          # (setpoint, velocity, gain, shift, fatigue, consumption)
    score = reward(frame)           # -(3 fatigue + consumption)

A step is deterministic given its :class:`Noise`, so that a trajectory can be replayed. Floating
point follows the noise: ``draw_noise(key, jnp.float64)`` (under x64) gives a float64 plant.

Symbols of the paper and their names here:

    p, v, g, h     setpoint, velocity, gain, shift      A        fatigue_amplification
    f, c           fatigue, consumption                 o, O     operational_cost, delayed_cost
    v_e, g_e, h_e  effective velocity, gain, shift      δ, ρ, φ  domain, response, direction
    H_g, H_v       latent_fatigue                       m        miscalibration
    n_g, n_v       disturbance                          z        SAFE_ZONE
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from moose.tasks import industrial_benchmark as known

# What a learner knows of the plant; nothing here scales rewards.
FRAME_NAMES, ACTION_NAMES, REWARD_SCALE = known.FRAME_NAMES, known.ACTION_NAMES, known.REWARD_SCALE
MAX_REQUIRED_STEP, SHIFT_STEP = known.MAX_REQUIRED_STEP, known.SHIFT_STEP
STEERING_STEPS = known.STEERING_STEPS
steer, reward = known.steer, known.reward

EPISODE_STEPS = 1000
FRAME_LOW = (0.0, 0.0, 0.0, 0.0, 0.0, -10.0)
FRAME_HIGH = (100.0, 100.0, 100.0, 100.0, 300.0, 5300.0)
"""No frame leaves these bounds. Fatigue is at most 30000/100; expected consumption lies between 1
and 5031, and its normal draw within 9 deviations, more than float64 random numbers can produce."""

INITIAL_STEERING = 50.0
EFFECTIVE_SHIFT_BOUND = 1.5
SAFE_ZONE = MAX_REQUIRED_STEP / 2.0
NUM_DIRECTIONS = 24
STRONGEST_DIRECTION = NUM_DIRECTIONS // 4

EFFECTIVE_ACTION_TOLERANCE = 0.05
BIFURCATION_START = 1.2
BIFURCATION_END = 5.0
DELAY_WEIGHTS = (0.11111, 0.22222, 0.33333, 0.22222, 0.11111, 0.0, 0.0, 0.0, 0.0, 0.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything that decides the future of one plant. Scalars, unless a shape is given.

    Attributes:
        setpoint: External load p, within [0, 100].
        velocity, gain, shift: Steerings v, g and h, each within [0, 100].
        fatigue, consumption: What was observed of f and c in the last step.
        operational_costs: ``[10]`` operational costs of the last steps, oldest first.
        latent_fatigue: ``[2]`` hidden H_g of the gain and H_v of the velocity, within [0, 5].
        domain: int32, side of zero the effective shift was on last, -1 or 1.
        response: int32, 1 while the potential turns with the shift, -1 once it turns back.
        direction: int32, angle of the potential in 24ths of a turn, -6 to 6.
        is_drifting: bool, whether the setpoint moves by itself.
        setpoint_change: What a drifting setpoint gains per step.
        sequence_step, sequence_length: int32, steps done with this change, and to be done.
    """

    setpoint: Array
    velocity: Array
    gain: Array
    shift: Array
    fatigue: Array
    consumption: Array
    operational_costs: Array
    latent_fatigue: Array
    domain: Array
    response: Array
    direction: Array
    is_drifting: Array
    setpoint_change: Array
    sequence_step: Array
    sequence_length: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """Every random number of one step, as standard draws of one floating-point type.

    Attributes:
        disturbance: ``[2]`` exponential with mean 1, everyday disturbance of gain and velocity.
        amplification: Standard normal, used once latent fatigue is at its maximum.
        consumption: Standard normal, observation noise.
        jump_size: ``[2]`` uniform on [0, 1), size of a jump of gain and of velocity.
        jump: ``[2]`` uniform on [0, 1); there is a jump where it is below the effective value.
        sequence_length, sequence_change: Uniform on [0, 1), of a new setpoint sequence.
        sequence_pause: Uniform on [0, 1); below 0.1 the new sequence stands still.
        setpoint_flip: Uniform on [0, 1); above 0.5 a setpoint at its bound turns round.
    """

    disturbance: Array
    amplification: Array
    consumption: Array
    jump_size: Array
    jump: Array
    sequence_length: Array
    sequence_change: Array
    sequence_pause: Array
    setpoint_flip: Array


def draw_noise(key: Array, dtype: DTypeLike = jnp.float32) -> Noise:
    """The random numbers of one step of one plant."""
    exponential_key, normal_key, uniform_key = jax.random.split(key, 3)
    amplification, consumption = jax.random.normal(normal_key, (2,), dtype)
    uniform = jax.random.uniform(uniform_key, (8,), dtype)
    return Noise(
        disturbance=jax.random.exponential(exponential_key, (2,), dtype),
        amplification=amplification,
        consumption=consumption,
        jump_size=uniform[0:2],
        jump=uniform[2:4],
        sequence_length=uniform[4],
        sequence_change=uniform[5],
        sequence_pause=uniform[6],
        setpoint_flip=uniform[7],
    )


def reset(setpoint: ArrayLike, noise: Noise, *, is_drifting: ArrayLike = False) -> State:
    """A plant at rest that has taken one step with zero action.

    Args:
        setpoint: The load to start from, within [0, 100].
        noise: The draws of that first step; they also decide the first setpoint sequence.
        is_drifting: Whether the setpoint moves by itself.
    """
    dtype = noise.consumption.dtype
    change, length = new_sequence(noise)  # the same draws serve the step below: it starts none
    middle = jnp.full((), INITIAL_STEERING, dtype)
    state = State(
        setpoint=jnp.asarray(setpoint, dtype),
        velocity=middle,
        gain=middle,
        shift=middle,
        fatigue=jnp.zeros((), dtype),
        consumption=jnp.zeros((), dtype),
        operational_costs=jnp.zeros(len(DELAY_WEIGHTS), dtype),
        latent_fatigue=jnp.zeros(2, dtype),
        domain=jnp.ones((), jnp.int32),
        response=jnp.ones((), jnp.int32),
        direction=jnp.zeros((), jnp.int32),
        is_drifting=jnp.asarray(is_drifting, bool),
        setpoint_change=change,
        sequence_step=jnp.zeros((), jnp.int32),
        sequence_length=length,
    )
    # The cost memory starts full of the first step's cost, so that cost is needed beforehand.
    first_cost = operational_cost(drift(state, noise).setpoint, middle, middle)
    state = dataclasses.replace(state, operational_costs=jnp.full(len(DELAY_WEIGHTS), first_cost))
    return step(state, jnp.zeros(len(ACTION_NAMES), dtype), noise)


def step(state: State, action: ArrayLike, noise: Noise) -> State:
    """The plant after ``action`` ``[3]``, which is clipped to [-1, 1], and the draws ``noise``."""
    state = drift(state, noise)
    velocity, gain, shift = steer(observe(state), action)
    state = dataclasses.replace(state, velocity=velocity, gain=gain, shift=shift)
    return consume(tire(state, noise), noise)


def observe(state: State) -> Array:
    """The frame ``[6]`` a controller sees, in the order of :data:`FRAME_NAMES`."""
    return jnp.stack([getattr(state, name) for name in FRAME_NAMES])


# Setpoint
def drift(state: State, noise: Noise) -> State:
    """The state one step further along its setpoint sequence; the setpoint follows if it drifts."""
    new_change, new_length = new_sequence(noise)
    is_over = state.sequence_step == state.sequence_length
    change = jnp.where(is_over, new_change, state.setpoint_change)
    setpoint = state.setpoint + change
    is_flipped = ((setpoint > 100.0) | (setpoint < 0.0)) & (noise.setpoint_flip > 0.5)
    return dataclasses.replace(
        state,
        setpoint=jnp.where(state.is_drifting, jnp.clip(setpoint, 0.0, 100.0), state.setpoint),
        setpoint_change=jnp.where(is_flipped, -change, change),
        sequence_step=jnp.where(is_over, 0, state.sequence_step) + 1,
        sequence_length=jnp.where(is_over, new_length, state.sequence_length),
    )


def new_sequence(noise: Noise) -> tuple[Array, Array]:
    """Change per step, U(-1, 1) or 0 with probability 0.1, and length, uniform on 1 to 99."""
    change = jnp.where(noise.sequence_pause < 0.1, 0.0, 2.0 * noise.sequence_change - 1.0)
    # A uniform draw just below one may round up to 99 whole units in float32.
    return change, 1 + jnp.minimum((99.0 * noise.sequence_length).astype(jnp.int32), 98)


# Fatigue
def tire(state: State, noise: Noise) -> State:
    """The state with the fatigue that its velocity and gain cause."""
    gain_pull = effective_gain(state.gain, state.setpoint)
    velocity_pull = effective_velocity(state.velocity, state.gain, state.setpoint)
    effective = jnp.stack([gain_pull, velocity_pull])
    disturbances = disturbance(effective, noise)
    latent = latent_fatigue(state.latent_fatigue, effective, disturbances)
    amplification = fatigue_amplification(jnp.max(latent), jnp.max(disturbances), noise)
    fatigue = basic_fatigue(state.velocity, state.gain) * (1.0 + 2.0 * amplification) / 3.0
    return dataclasses.replace(state, fatigue=fatigue, latent_fatigue=latent)


def effective_velocity(velocity: Array, gain: Array, setpoint: Array) -> Array:
    """v_e within [0, 1]: 0 at full velocity without gain, 1 at full gain without velocity."""

    def ratio(velocity: Array | float, gain: Array | float) -> Array:
        return (gain + setpoint + 2.0) / (velocity + 101.0 - setpoint)

    lowest, highest = ratio(100.0, 0.0), ratio(0.0, 100.0)
    return (ratio(velocity, gain) - lowest) / (highest - lowest)


def effective_gain(gain: Array, setpoint: Array) -> Array:
    """g_e within [0, 1]: 0 at full gain, 1 without gain."""

    def ratio(gain: Array | float) -> Array:
        return 1.0 / (gain + 1.0 + setpoint)

    lowest, highest = ratio(100.0), ratio(0.0)
    return (ratio(gain) - lowest) / (highest - lowest)


def disturbance(effective: Array, noise: Noise) -> Array:
    """Noise n within [0, 1]: always a little, now and then a jump towards the effective value."""
    everyday = jnp.tanh(0.1 * noise.disturbance / 2.0)  # 2/(1 + exp(-e)) - 1, no cancellation
    is_jump = noise.jump < jnp.clip(effective, 0.001, 0.999)
    return everyday + (1.0 - everyday) * jnp.where(is_jump, noise.jump_size * effective, 0.0)


def latent_fatigue(latent: Array, effective: Array, disturbances: Array) -> Array:
    """H: relaxed by gentle steering, otherwise a leaky sum that runs away above 1.2, up to 5."""
    runaway = jnp.minimum(BIFURCATION_END, 1.1 * latent)
    leaky = 0.9 * latent + disturbances / 3.0
    grown = jnp.where(latent >= BIFURCATION_START, runaway, leaky)
    return jnp.where(effective <= EFFECTIVE_ACTION_TOLERANCE, effective, grown)


def fatigue_amplification(latent: Array, disturbances: Array, noise: Noise) -> Array:
    """A: the larger disturbance, or close to one once latent fatigue has run away."""
    high = jax.nn.sigmoid(2.4 + 0.4 * noise.amplification)
    # The minimum in latent_fatigue returns its bound itself, so that equality is exact.
    return jnp.where(latent == BIFURCATION_END, high, disturbances)


def basic_fatigue(velocity: Array, gain: Array) -> Array:
    """f_b: what velocity and gain alone would cause."""
    return jnp.maximum(0.0, 30000.0 / (5.0 * velocity + 100.0) - 0.01 * gain**2)


# Consumption
def consume(state: State, noise: Noise) -> State:
    """The state with the consumption that its steering causes, now and in the next steps."""
    cost = operational_cost(state.setpoint, state.velocity, state.gain)
    costs = jnp.concatenate([state.operational_costs[1:], cost[None]])
    position = effective_shift(state.shift, state.setpoint)
    state = turn(state, position)
    misfit = miscalibration(state.direction, position)
    consumption = noisy_consumption(delayed_cost(costs), misfit, noise)
    return dataclasses.replace(state, consumption=consumption, operational_costs=costs)


def operational_cost(setpoint: Array, velocity: Array, gain: Array) -> Array:
    """o: what running at this load costs, to be paid later."""
    return jnp.exp((2.0 * setpoint + 4.0 * velocity + 2.5 * gain) / 100.0)


def delayed_cost(operational_costs: Array) -> Array:
    """O: the costs of 5 to 9 steps ago, blurred."""
    return jnp.sum(operational_costs * jnp.asarray(DELAY_WEIGHTS, operational_costs.dtype))


def noisy_consumption(delayed: Array, misfit: Array, noise: Noise) -> Array:
    """Observed c, from the delayed cost O and the miscalibration m."""
    expected = delayed - 25.0 * (misfit - 1.0)
    return expected - noise.consumption * (1.0 + 0.005 * expected)


def effective_shift(shift: Array, setpoint: Array) -> Array:
    """h_e: the shift relative to what the setpoint calls for."""
    position = shift / 20.0 - setpoint / 50.0 - EFFECTIVE_SHIFT_BOUND
    return jnp.clip(position, -EFFECTIVE_SHIFT_BOUND, EFFECTIVE_SHIFT_BOUND)


# Miscalibration: a Goldstone potential that turns while the effective shift is not near zero
def turn(state: State, position: Array) -> State:
    """The state with domain, response and direction one step later, given the effective shift."""
    # The side of zero that the effective shift is on; 0 stands for the safe zone.
    side = jnp.where(jnp.abs(position) <= SAFE_ZONE, 0.0, jnp.sign(position)).astype(jnp.int32)
    domain = jnp.where(side == 0, state.domain, side)
    response = jnp.where(domain != state.domain, 1, state.response)
    turned = state.direction + angular_step(domain, response, state.direction, side)
    response = jnp.where(jnp.abs(turned) >= STRONGEST_DIRECTION, -1, response)
    direction = folded_direction(turned)
    is_calm = (side == 0) & (direction == 0)
    domain, response = jnp.where(is_calm, 1, domain), jnp.where(is_calm, 1, response)
    return dataclasses.replace(state, domain=domain, response=response, direction=direction)


def angular_step(domain: Array, response: Array, direction: Array, side: Array) -> Array:
    """Back towards zero in the safe zone, stuck at the far end, else along the response."""
    is_stuck = direction == -STRONGEST_DIRECTION * domain
    return jnp.where(side == 0, -jnp.sign(direction), jnp.where(is_stuck, 0, response * side))


def folded_direction(direction: Array) -> Array:
    """The direction reflected at the strongest one, so that 7 becomes 5."""
    reflected = NUM_DIRECTIONS // 2 - (direction + NUM_DIRECTIONS) % NUM_DIRECTIONS
    return jnp.where(jnp.abs(direction) >= STRONGEST_DIRECTION, reflected, direction)


def miscalibration(direction: Array, position: Array) -> Array:
    """m: minus the potential along a direction at the effective shift, at most 1."""
    table = jnp.asarray(_DIRECTIONS, position.dtype)
    sine, minimum, desired = table[direction + STRONGEST_DIRECTION]
    return -potential(stretched_radius(position, minimum, desired), sine)


def stretched_radius(position: Array, minimum: Array, desired: Array) -> Array:
    """T: the effective shift rescaled, so that the potential is lowest at the desired radius."""
    distance = jnp.abs(position)
    exponent = (2.0 - desired) / (2.0 - minimum)
    # Never a negative base: its power is not a number, even where that branch is not taken.
    beyond = (jnp.maximum(distance - desired, 0.0) / (2.0 - desired)) ** exponent
    outer = jnp.sign(position) * (minimum + (2.0 - minimum) * beyond)
    return jnp.where(distance <= desired, position * minimum / desired, outer)


def potential(radius: Array, sine: Array) -> Array:
    """L: the tilted double well along a direction, given the sine of its angle."""
    squared = radius**2
    return (squared**2 - 2.0 * squared - 8.0 * _TILT * sine * radius) / _DEPTH


def minimum_radius(sine: float) -> float:
    """|r_min|: where the potential along a direction is lowest, given the sine of its angle."""
    # On the host, in double precision: 45 degrees lies exactly on the border of the two branches,
    # where float32 rounding would take the square root of a negative number.
    tilt, border = _TILT * abs(sine), math.sqrt(1.0 / 27.0)
    if tilt >= border:
        root = math.cbrt(tilt + math.sqrt(max(tilt**2 - border**2, 0.0)))
        return root + 1.0 / (3.0 * root)
    return math.sqrt(4.0 / 3.0) * math.cos(math.acos(tilt / border) / 3.0)


def desired_radius(sine: float) -> float:
    """|R|: the effective shift that suits a direction best."""
    return max(abs(sine), MAX_REQUIRED_STEP)


def _direction_table() -> tuple[tuple[float, float, float], ...]:
    """``[13, 3]`` sine, minimum radius and desired radius of the directions -6 to 6."""
    directions = range(-STRONGEST_DIRECTION, STRONGEST_DIRECTION + 1)
    sines = [math.sin(2.0 * math.pi * direction / NUM_DIRECTIONS) for direction in directions]
    return tuple((sine, minimum_radius(sine), desired_radius(sine)) for sine in sines)


_TILT = math.sqrt(2.0 / 27.0)
_LOWEST = minimum_radius(1.0)
# λ scales the potential so that its lowest value, at a quarter turn, is -1.
_DEPTH = 2.0 * _LOWEST**2 - _LOWEST**4 + 8.0 * _TILT * _LOWEST
_DIRECTIONS = _direction_table()
