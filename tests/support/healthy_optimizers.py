"""Optimizers in many styles, all of them healthy: nothing may be said of them.

Each does something that looks like a fault which a rule looks for.
"""
# mypy: ignore-errors
# Bodies as people write them: without types.

import functools

import tensorflow as tf
from libraries import keras2 as tf_keras, keras3 as keras

ops = getattr(keras, "ops", None)
L = tf_keras.optimizers.legacy.Optimizer
K2 = tf_keras.optimizers.Optimizer
K3 = keras.optimizers.Optimizer if keras else object
V1 = tf.compat.v1.train.Optimizer
ALL = []


def add(cls):
    if cls.__mro__[1] is not object:  # where there is no Keras 3
        ALL.append(cls)
    return cls


@add
class HelperDense(L):  # helper without underscore that the right one calls
    def __init__(self):
        super().__init__("H")

    def apply_dense(self, grad, var):
        return var.assign_sub(0.1 * grad)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return self.apply_dense(grad, var)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        return self._resource_scatter_add(var, indices, -grad)

    def get_config(self):
        return {}


@add
class GetattrDense(L):  # dispatch by name
    def __init__(self):
        super().__init__("H")

    def apply_dense(self, grad, var):
        return var.assign_sub(0.1 * grad)

    def apply_sparse(self, grad, var):
        return var.assign_sub(0.1 * grad)

    def _run(self, which, *a):
        return getattr(self, "apply_" + which)(*a)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return self._run("dense", grad, var)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        raise NotImplementedError

    def get_config(self):
        return {}


@add
class FString(L):
    def __init__(self):
        super().__init__("H")

    def apply_dense(self, grad, var):
        return var.assign_sub(0.1 * grad)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        kind = "dense"
        return getattr(self, f"apply_{kind}")(grad, var)

    def _resource_apply_sparse(self, grad, var):
        raise NotImplementedError("no sparse")

    def get_config(self):
        return {}


@add
class CalledFromOutside(V1):  # a loop of the program calls it, below
    def __init__(self):
        super().__init__(False, "x")

    def apply_sparse(self, grad, var):
        return var.assign_sub(grad)

    def _apply_dense(self, g, v):
        return v.assign_sub(g)

    def _resource_apply_dense(self, g, v):
        return v.assign_sub(0.1 * g)

    def _apply_sparse(self, g, v):
        return v

    def _resource_apply_sparse(self, g, v, i):
        return v


def loop(o, v):
    return o.apply_sparse(v, v)


def deco(f):
    @functools.wraps(f)
    def inner(self, *a, **k):
        return f(self, *a, **k)

    return inner


def plain_deco(f):
    def inner(*a, **k):
        return f(*a, **k)

    return inner


@add
class Decorated(L):
    def __init__(self):
        super().__init__("H")

    @deco
    def _resource_apply_dense(self, grad, var, apply_state=None):
        return var.assign_sub(0.1 * grad)

    @plain_deco
    def _resource_apply_sparse(self, grad, var, indices):
        return var

    def get_config(self):
        return {}


@add
class Kwargs(L):
    def __init__(self):
        super().__init__("H")

    def _resource_apply_dense(self, grad, var, **kw):
        return var.assign_sub(0.1 * grad)

    def _resource_apply_sparse(self, grad, *rest, **kw):
        return rest[0]

    def get_config(self):
        return {}


@add
class Positional(K3):
    def update_step(self, g, v, lr=0.1, /):
        self.assign_sub(v, ops.cast(lr, v.dtype) * g)


@add
class Partial(K3):
    update_step = functools.partialmethod(
        lambda self, k, g, v, lr: self.assign_sub(v, k * lr * g), 1.0
    )


@add
class Adamish(K3):
    def build(self, vs):
        if self.built:
            return
        super().build(vs)
        self.m = [self.add_variable_from_reference(v, "m") for v in vs]

    def update_step(self, g, v, lr):
        step = ops.cast(self.iterations + 1, v.dtype)
        m = self.m[self._get_variable_index(v)]
        self.assign_add(m, 0.1 * (g - m))
        self.assign_sub(v, lr * m / (1 - ops.power(ops.cast(0.9, v.dtype), step)))


@add
class PerVariableStep(K3):  # a step for each variable
    def build(self, vs):
        if self.built:
            return
        super().build(vs)
        self.t = [self.add_variable((), name="t", initializer="zeros") for v in vs]

    def update_step(self, g, v, lr):
        t = self.t[self._get_variable_index(v)]
        self.assign_add(t, 1.0)
        self.assign_sub(v, lr * g / t)


@add
class StepInApply(K3):  # moved once a step
    def build(self, vs):
        if self.built:
            return
        super().build(vs)
        self.t = self.add_variable((), name="t", initializer="zeros")

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        self.t.assign_add(1.0)
        return super().apply(grads, trainable_variables)

    def update_step(self, g, v, lr):
        self.assign_sub(v, lr * g / self.t)


@add
class GlobalNorm(K3):  # a statistic over the variables
    def build(self, vs):
        if self.built:
            return
        super().build(vs)
        self.norm = self.add_variable((), name="norm", initializer="ones")

    def update_step(self, g, v, lr):
        self.assign(self.norm, 0.9 * self.norm + 0.1 * ops.norm(g))
        self.assign_sub(v, lr * g / (self.norm + 1.0))


@add
class DAdapt(K3):  # sums over the variables, set back each step
    def build(self, vs):
        if self.built:
            return
        super().build(vs)
        self.num = self.add_variable((), name="num", initializer="zeros")
        self.d = self.add_variable((), name="d", initializer="ones")

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        self.d.assign(ops.maximum(self.d, self.num))
        self.num.assign(0.0)
        return super().apply(grads, trainable_variables)

    def update_step(self, g, v, lr):
        self.num.assign_add(lr * ops.sum(g * v))
        self.assign_sub(v, lr * self.d * g)


@add
class Noise(K2):
    def __init__(self):
        super().__init__("noise")
        self._learning_rate = self._build_learning_rate(0.1)
        self.seed = tf.Variable(0, trainable=False)

    def update_step(self, g, v):
        self.seed.assign_add(1)
        v.assign_sub(0.1 * (g + tf.random.stateless_normal(v.shape, [self.seed, 1])))


@add
class NoiseByLocals(K2):
    def __init__(self):
        super().__init__("noise")
        self._learning_rate = self._build_learning_rate(0.1)
        self.seed = tf.Variable(0, trainable=False)

    def update_step(self, g, v):
        n = self.seed.assign_add(1)
        pair = tf.stack([n, n])
        noise = tf.random.stateless_uniform(v.shape, pair)
        v.assign_sub(0.1 * (g + noise))


@add
class Index(K2):  # which variable it is, set back each step
    def __init__(self):
        super().__init__("i")
        self._learning_rate = self._build_learning_rate(0.1)
        self.i = tf.Variable(0, trainable=False)
        self.rates = tf.constant([0.1] * 9)

    def apply_gradients(self, gv, *a, **k):
        self.i.assign(0)
        return super().apply_gradients(gv, *a, **k)

    def update_step(self, g, v):
        v.assign_sub(tf.gather(self.rates, self.i) * g)
        self.i.assign_add(1)


@add
class Logged(K2):
    def __init__(self):
        super().__init__("i")
        self._learning_rate = self._build_learning_rate(0.1)
        self.updates = tf.Variable(0, trainable=False)

    def update_step(self, g, v):
        n = self.updates.assign_add(1)
        tf.cond(n % 1000 == 0, lambda: tf.print("updates", n, self.updates), lambda: tf.no_op())
        v.assign_sub(0.1 * g)


@add
class FirstOnly(K2):
    def __init__(self):
        super().__init__("i")
        self._learning_rate = self._build_learning_rate(0.1)
        self.t = tf.Variable(0.0, trainable=False)
        self.first = None

    def build(self, vs):
        super().build(vs)
        self.first = vs[0]

    def update_step(self, g, v):
        if v is self.first:
            self.t.assign_add(1.0)
        v.assign_sub(g / self.t)


@add
class FirstOnlyEarly(K2):
    def __init__(self):
        super().__init__("i")
        self._learning_rate = self._build_learning_rate(0.1)
        self.t = tf.Variable(1.0, trainable=False)
        self.first = None

    def build(self, vs):
        super().build(vs)
        self.first = vs[0]

    def update_step(self, g, v):
        v.assign_sub(g / self.t)
        if v is not self.first:
            return
        self.t.assign_add(1.0)


@add
class Lookahead(tf_keras.optimizers.legacy.Optimizer):  # a wrapper
    def __init__(self):
        super().__init__("LA")
        self.inner = tf_keras.optimizers.legacy.SGD(0.1)

    def _create_slots(self, var_list):
        self.inner._create_slots(var_list)
        for v in var_list:
            self.add_slot(v, "slow", initializer=v)

    def _prepare(self, vs):
        return self.inner._prepare(vs)

    def _resource_apply_dense(self, g, v, apply_state=None):
        op = self.inner._resource_apply_dense(g, v, apply_state)
        with tf.control_dependencies([op] if op is not None else []):
            slow = self.get_slot(v, "slow")
            sync = tf.equal(tf.math.floormod(self.iterations + 1, 5), 0)
            return tf.group(slow.assign(tf.where(sync, slow + 0.5 * (v - slow), slow)))

    def _resource_apply_sparse(self, g, v, i, apply_state=None):
        return self.inner._resource_apply_sparse(g, v, i, apply_state)

    def get_config(self):
        return {}


@add
class Versions(K3):  # for several versions of Keras
    def _resource_apply_dense(self, grad, var, apply_state=None):
        return var.assign_sub(grad)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        return var

    def update_step(self, g, v, lr):
        self.assign_sub(v, lr * g)


@add
class NotAnApply(K3):  # public names of their own that the program uses
    def apply_decay(self, v):
        self.assign_sub(v, 0.01 * v)

    def update_step(self, g, v, lr):
        self.apply_decay(v)
        self.assign_sub(v, lr * g)


@add
class Schedule(K2):
    def __init__(self):
        super().__init__("s")
        self._learning_rate = self._build_learning_rate(
            tf_keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        )

    def update_step(self, g, v):
        lr = tf.cast(self.learning_rate, v.dtype)
        t = tf.cast(self.iterations + 1, v.dtype)
        v.assign_sub(lr * g / t)


@add
class Share(K2):  # each variable adds its share
    def __init__(self):
        super().__init__("s")
        self._learning_rate = self._build_learning_rate(0.1)
        self.t = tf.Variable(0.0, trainable=False)
        self.n = 1.0

    def build(self, vs):
        super().build(vs)
        self.n = float(len(vs))

    def update_step(self, g, v):
        self.t.assign_add(1.0 / self.n)
        v.assign_sub(g / (1.0 + self.t))


@add
class SumSquares(V1):
    def __init__(self):
        super().__init__(False, "ss")
        self.total = tf.Variable(0.0, trainable=False)

    def _resource_apply_dense(self, g, v):
        total = self.total.assign_add(tf.reduce_sum(g * g))
        return v.assign_sub(g / (1.0 + tf.sqrt(total)))

    def _resource_apply_sparse(self, g, v, i):
        return v

    _apply_dense = _resource_apply_dense

    def _apply_sparse(self, g, v):
        return v
