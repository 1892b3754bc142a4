"""Optimizers in many styles, all of them healthy: nothing may be said of them.

They are written as published rules are. What looks like a fault in the code of a class alone is in
`evidence/test_inspection.py`.
"""
# mypy: ignore-errors
# Bodies as people write them: without types.

import tensorflow as tf
from support.libraries import keras2 as tf_keras, keras3 as keras

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


class OwnLegacy(L):
    """Where those of one's own begin in the older interface."""

    def __init__(self, name="own"):
        super().__init__(name)

    def get_config(self):
        return {}


class WithRate(K2):
    """Where those for Keras 2.11 and later begin."""

    def __init__(self, learning_rate=0.1, name="own", **kwargs):
        super().__init__(name=name, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)


@add
class DictInTheApplyMethod(OwnLegacy):
    def __init__(self):
        super().__init__("late")
        self.velocities = {}

    def _resource_apply_dense(self, grad, var, apply_state=None):
        if var.ref() not in self.velocities:
            with tf.init_scope():
                self.velocities[var.ref()] = tf.Variable(tf.zeros(var.shape), trainable=False)
        velocity = self.velocities[var.ref()]
        velocity.assign(0.9 * velocity + grad)
        return var.assign_sub(0.1 * velocity)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        raise NotImplementedError("dense gradients only")


@add
class SlotsAsThePublished(V1):
    def __init__(self, learning_rate=0.1):
        super().__init__(False, "slots")
        self._rate = learning_rate

    def _prepare(self):
        self._rate_t = tf.convert_to_tensor(self._rate)

    def _create_slots(self, var_list):
        for each in var_list:
            self._zeros_slot(each, "m", self._name)

    def _apply_dense(self, grad, var):
        return self._resource_apply_dense(grad, var)

    def _resource_apply_dense(self, grad, var):
        m = self.get_slot(var, "m")
        moved = m.assign(tf.maximum(0.9 * m, tf.abs(grad)))
        update = var.assign_sub(self._rate_t * grad / (moved + 1e-8))
        return tf.group(update, moved)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._resource_apply_dense(
            tf.convert_to_tensor(tf.IndexedSlices(grad, indices, tf.shape(var))), var
        )

    def _apply_sparse(self, grad, var):
        return self._resource_apply_sparse(grad.values, var, grad.indices)


@add
class CentralizedByApplyGradients(tf_keras.optimizers.legacy.SGD):
    def __init__(self):
        super().__init__(0.1, momentum=0.9)

    def apply_gradients(self, grads_and_vars, name=None, **kwargs):
        centred = []
        for gradient, variable in grads_and_vars:
            if gradient is not None and len(gradient.shape) > 1:
                gradient -= tf.reduce_mean(gradient, axis=0, keepdims=True) * 0.5
            centred.append((gradient, variable))
        return super().apply_gradients(centred, name, **kwargs)


@add
class CentralizedByGetGradients(tf_keras.optimizers.legacy.Adam):
    def get_gradients(self, loss, params):
        return [g - tf.reduce_mean(g) for g in super().get_gradients(loss, params)]

    def _compute_gradients(self, loss, var_list, grad_loss=None, tape=None):
        pairs = super()._compute_gradients(loss, var_list, grad_loss, tape)
        return [(g - tf.reduce_mean(g), v) for g, v in pairs]


@add
class DecayOfSome(tf_keras.optimizers.legacy.Adam):  # as AdamW for BERT has it
    def _do_decay(self, name):
        return "b" not in name

    def _decay(self, var):
        if self._do_decay(var.name):
            return var.assign_sub(0.01 * var, use_locking=self._use_locking)
        return tf.no_op()

    def _resource_apply_dense(self, grad, var, apply_state=None):
        with tf.control_dependencies([self._decay(var)]):
            return super()._resource_apply_dense(grad, var, apply_state)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        with tf.control_dependencies([self._decay(var)]):
            return super()._resource_apply_sparse(grad, var, indices, apply_state)


@add
class LookaheadOfItsOwn(WithRate):
    def build(self, var_list):
        super().build(var_list)
        if not getattr(self, "slow", None):
            self.slow = [
                self.add_variable_from_reference(v, "slow", initial_value=v) for v in var_list
            ]

    def update_step(self, gradient, variable):
        variable.assign_sub(self.learning_rate * gradient)
        slow = self.slow[self._index_dict[self._var_key(variable)]]

        def sync():
            slow.assign_add(0.5 * (variable - slow))
            variable.assign(slow)

        tf.cond((self.iterations + 1) % 3 == 0, sync, lambda: None)


@add
class ProdigyLike(K3):  # its distance is one number for all variables, made anew in each step
    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.d = self.add_variable((), name="d", initializer="ones")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.d.assign(self.d * 1.01)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * self.d * gradient)


@add
class PowersInFinish(V1):
    def __init__(self):
        super().__init__(False, "finish")
        self.power = tf.Variable(0.9, trainable=False)

    def _resource_apply_dense(self, grad, var):
        return var.assign_sub(0.1 * grad / (1 - self.power))

    def _resource_apply_sparse(self, grad, var, indices):
        return self._resource_scatter_add(var, indices, -0.1 * grad)

    def _finish(self, update_ops, name_scope):
        with tf.control_dependencies(update_ops):
            moved = self.power.assign(self.power * 0.9)
        return tf.group(*update_ops, moved, name=name_scope)

    _apply_dense = _resource_apply_dense

    def _apply_sparse(self, grad, var):
        return var


@add
class Raw(OwnLegacy):  # by the op itself, with keyword arguments
    def __init__(self):
        super().__init__("raw")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=var.handle, alpha=tf.constant(0.1), delta=grad, use_locking=True
        )

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        return tf.raw_ops.ResourceScatterSub(
            resource=var.handle, indices=indices, updates=0.1 * grad
        )


@add
class RawScatter(K3):  # by the variable beneath
    def update_step(self, gradient, variable, learning_rate):
        beneath = variable.value if hasattr(variable, "path") else variable
        rows = tf.range(tf.shape(beneath)[0])
        beneath.scatter_sub(tf.IndexedSlices(learning_rate * gradient, rows))


@add
class InAHelperFunction(WithRate):
    def update_step(self, gradient, variable):
        return _descend(variable, gradient, self.learning_rate)


def _descend(variable, gradient, rate):
    variable.assign(variable - rate * gradient)


@add
class ByLoops(WithRate):  # row by row
    def update_step(self, gradient, variable):
        for row in range(variable.shape[0]):
            variable[row].assign(variable[row] - self.learning_rate * gradient[row])


@add
class Noisy(keras.optimizers.SGD if keras else object):
    def __init__(self, learning_rate=0.1, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.generator = keras.random.SeedGenerator(1)

    def update_step(self, gradient, variable, learning_rate):
        noise = keras.random.normal(ops.shape(gradient), seed=self.generator)
        super().update_step(gradient + 0.01 * noise, variable, learning_rate)


@add
class ReadsItsSettings(OwnLegacy):  # keeps what the method works out for a later look
    def __init__(self):
        super().__init__("kept")
        self._set_hyper("learning_rate", 0.1)
        self._is_first = True

    def _prepare(self, var_list):
        self._is_first = False
        return super()._prepare(var_list)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        rate = self._get_hyper("learning_rate", var.dtype.base_dtype)
        return tf.compat.v1.assign_sub(var, rate * grad)

    def _resource_apply_sparse(self, grad, var, indices, **kwargs):
        rate = self._get_hyper("learning_rate", var.dtype.base_dtype)
        return tf.compat.v1.scatter_sub(var, indices, rate * grad)
