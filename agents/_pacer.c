/* A native sender thread: datagrams of a buffer, each sent at its own absolute CLOCK_MONOTONIC time.
 *
 * One thread per Pacer, made once and reused for every start(). It never takes the interpreter's lock, so neither
 * Python code nor garbage collection can delay a datagram. The lock order is: interpreter, then pacer->lock; whoever
 * waits for pacer->lock or for the thread first gives up the interpreter.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000LL
#define MAX_DATAGRAM_BYTES 65507 /* UDP over IPv4 */
#define MAX_BATCH 1024           /* the kernel's limit on one sendmmsg */
#define RETRY_NS 200000LL

typedef struct {
    PyObject_HEAD
    int fd;      /* our own duplicate of the caller's socket */
    int done_fd; /* eventfd: readable once the thread has nothing left to send */
    bool open;
    bool realtime;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* to the thread: work, cancel, quit */
    pthread_cond_t idle; /* from the thread: `running` has become false */

    /* Guarded by lock. */
    bool running;
    bool cancelled;
    bool quit;
    size_t count;
    size_t sent;
    uint64_t retries;
    int error;

    /* Written by start() while the thread is idle, read by the thread while it runs. */
    Py_buffer payload;
    bool holds_payload;
    struct mmsghdr *messages;
    struct iovec *vectors;
    int64_t *due_ns;
    int64_t *lateness_ns; /* first `sent` entries are valid, under lock */
} Pacer;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NANOSECONDS + now.tv_nsec;
}

static bool is_transient(int error)
{
    /* ECONNREFUSED is a connected socket's report about an earlier datagram: this one was not sent, but can be. */
    return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM || error == EINTR ||
           error == ECONNREFUSED;
}

/* Wait under lock until `due`, or until start(), cancel() or close() signals. */
static void wait_until(Pacer *pacer, int64_t due)
{
    struct timespec until = {.tv_sec = due / NANOSECONDS, .tv_nsec = due % NANOSECONDS};

    pthread_cond_timedwait(&pacer->wake, &pacer->lock, &until);
}

/* Send what is due from `next` on; called and returns with the lock held. Sets pacer->sent, retries and error. */
static void send_due(Pacer *pacer, size_t next, int64_t now)
{
    unsigned int batch = 0;
    int accepted;
    int error;

    while (next + batch < pacer->count && batch < MAX_BATCH && pacer->due_ns[next + batch] <= now)
        batch++;

    pthread_mutex_unlock(&pacer->lock);
    now = now_ns();
    accepted = sendmmsg(pacer->fd, &pacer->messages[next], batch, MSG_DONTWAIT);
    error = accepted < 0 ? errno : 0;
    if (error == EAGAIN || error == EWOULDBLOCK) {
        struct pollfd writable = {.fd = pacer->fd, .events = POLLOUT};
        poll(&writable, 1, 1);
    }
    pthread_mutex_lock(&pacer->lock);

    if (accepted > 0) {
        for (size_t i = next; i < next + (size_t)accepted; i++)
            pacer->lateness_ns[i] = now - pacer->due_ns[i];
        pacer->sent = next + (size_t)accepted;
        return;
    }
    if (accepted < 0 && !is_transient(error)) {
        pacer->error = error;
        return;
    }
    pacer->retries++;
    if (error == ENOBUFS || error == ENOMEM)
        wait_until(pacer, now_ns() + RETRY_NS);
}

static void *pacer_thread(void *argument)
{
    Pacer *pacer = argument;
    const uint64_t one = 1;

    prctl(PR_SET_TIMERSLACK, 1UL);
    pthread_mutex_lock(&pacer->lock);
    while (!pacer->quit) {
        if (!pacer->running) {
            pthread_cond_wait(&pacer->wake, &pacer->lock);
            continue;
        }
        if (pacer->sent < pacer->count && !pacer->cancelled && pacer->error == 0) {
            int64_t now = now_ns();
            if (pacer->due_ns[pacer->sent] > now)
                wait_until(pacer, pacer->due_ns[pacer->sent]);
            else
                send_due(pacer, pacer->sent, now);
            continue;
        }
        pacer->running = false;
        /* Cannot fail: the counter was drained by start(), so one more fits. */
        if (write(pacer->done_fd, &one, sizeof(one)) < 0)
            pacer->error = errno;
        pthread_cond_broadcast(&pacer->idle);
    }
    pacer->running = false;
    pthread_cond_broadcast(&pacer->idle);
    pthread_mutex_unlock(&pacer->lock);
    return NULL;
}

/* With the interpreter's lock held: stop sending and wait until the thread is idle. */
static void stop_sending(Pacer *pacer)
{
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&pacer->lock);
    pacer->cancelled = true;
    pthread_cond_signal(&pacer->wake);
    while (pacer->running)
        pthread_cond_wait(&pacer->idle, &pacer->lock);
    pthread_mutex_unlock(&pacer->lock);
    Py_END_ALLOW_THREADS
}

/* Free what start() has prepared; the thread must be idle. What was sent and how late stays readable. */
static void release_work(Pacer *pacer)
{
    if (pacer->holds_payload) {
        PyBuffer_Release(&pacer->payload);
        pacer->holds_payload = false;
    }
    free(pacer->messages);
    free(pacer->vectors);
    free(pacer->due_ns);
    pacer->messages = NULL;
    pacer->vectors = NULL;
    pacer->due_ns = NULL;
}

static int require_open(Pacer *pacer)
{
    if (pacer->open)
        return 0;
    PyErr_SetString(PyExc_ValueError, "this pacer is closed");
    return -1;
}

static void shut_down(Pacer *pacer)
{
    if (!pacer->open)
        return;
    pacer->open = false;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&pacer->lock);
    pacer->quit = true;
    pthread_cond_signal(&pacer->wake);
    pthread_mutex_unlock(&pacer->lock);
    pthread_join(pacer->thread, NULL);
    Py_END_ALLOW_THREADS
    release_work(pacer);
    close(pacer->done_fd);
    close(pacer->fd);
}

static void make_locks(Pacer *pacer)
{
    pthread_mutexattr_t inherit;
    pthread_condattr_t clock;

    /* A low-priority caller that is preempted while it holds the lock must not hold up the thread. */
    pthread_mutexattr_init(&inherit);
    pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&pacer->lock, &inherit);
    pthread_mutexattr_destroy(&inherit);
    pthread_cond_init(&pacer->idle, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&pacer->wake, &clock);
    pthread_condattr_destroy(&clock);
}

/* Make the thread, at real-time priority if that is asked for and allowed. Returns an error number. */
static int make_thread(Pacer *pacer, int priority)
{
    const struct sched_param parameters = {.sched_priority = priority};
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = EPERM;

    /* Signals are the interpreter's business: its main thread must get them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (priority > 0) {
        pthread_attr_init(&attributes);
        pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
        pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
        pthread_attr_setschedparam(&attributes, &parameters);
        error = pthread_create(&pacer->thread, &attributes, pacer_thread, pacer);
        pthread_attr_destroy(&attributes);
        pacer->realtime = error == 0;
    }
    if (error == EPERM)
        error = pthread_create(&pacer->thread, NULL, pacer_thread, pacer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static PyObject *pacer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"fd", "priority", NULL};
    Pacer *pacer;
    int fd, priority, error;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii:Pacer", keywords, &fd, &priority))
        return NULL;
    if (priority < 0 || priority > sched_get_priority_max(SCHED_FIFO))
        return PyErr_Format(PyExc_ValueError, "priority is %d, it must be 0 (none) to %d", priority,
                            sched_get_priority_max(SCHED_FIFO));
    pacer = (Pacer *)type->tp_alloc(type, 0);
    if (pacer == NULL)
        return NULL;
    make_locks(pacer);
    pacer->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (pacer->fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(pacer);
        return NULL;
    }
    pacer->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pacer->done_fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        close(pacer->fd);
        Py_DECREF(pacer);
        return NULL;
    }
    error = make_thread(pacer, priority);
    if (error != 0) {
        close(pacer->done_fd);
        close(pacer->fd);
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(pacer);
        return NULL;
    }
    pacer->open = true;
    return (PyObject *)pacer;
}

static void pacer_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Pacer *pacer = (Pacer *)self;

    shut_down(pacer);
    free(pacer->lateness_ns);
    /* Not in close(): another thread may still be on its way out of cancel(). */
    pthread_cond_destroy(&pacer->idle);
    pthread_cond_destroy(&pacer->wake);
    pthread_mutex_destroy(&pacer->lock);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Take a one-dimensional contiguous array of native integers, `codes` being the struct codes that have `item` bytes. */
static int take_integers(PyObject *object, Py_buffer *view, const char *codes, Py_ssize_t item, const char *name)
{
    const char *format;

    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError))
            PyErr_Format(PyExc_ValueError, "%s must be contiguous", name);
        return -1;
    }
    format = view->format == NULL ? "B" : view->format;
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    if (view->ndim == 1 && view->itemsize == item && strlen(format) == 1 && strchr(codes, *format) != NULL)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be a one-dimensional array of int%zd", name, 8 * item);
    PyBuffer_Release(view);
    return -1;
}

/* Check the arguments of start(). */
static int check_work(const Py_buffer *payload, Py_ssize_t slot_bytes, const Py_buffer *lengths, const Py_buffer *times)
{
    const int32_t *length = lengths->buf;
    const int64_t *time = times->buf;
    Py_ssize_t count = lengths->shape[0];

    if (times->shape[0] != count) {
        PyErr_Format(PyExc_ValueError, "lengths has %zd entries and times_ns %zd: they must be alike", count,
                     times->shape[0]);
        return -1;
    }
    if (slot_bytes < 1) {
        PyErr_Format(PyExc_ValueError, "slot_bytes is %zd, it must be positive", slot_bytes);
        return -1;
    }
    if (count > payload->len / slot_bytes) {
        PyErr_Format(PyExc_ValueError, "the buffer has %zd bytes, %zd slots of %zd bytes do not fit", payload->len, count,
                     slot_bytes);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (length[i] < 1 || length[i] > slot_bytes || length[i] > MAX_DATAGRAM_BYTES) {
            PyErr_Format(PyExc_ValueError, "lengths[%zd] is %d, it must be 1 to the lesser of slot_bytes and %d", i,
                         (int)length[i], MAX_DATAGRAM_BYTES);
            return -1;
        }
        if (time[i] < 0 || (i > 0 && time[i] < time[i - 1])) {
            PyErr_Format(PyExc_ValueError, "times_ns[%zd] is negative or before the one ahead of it", i);
            return -1;
        }
    }
    return 0;
}

/* Build the message vectors; the arguments have been checked and the thread is idle. */
static int prepare_work(Pacer *pacer, Py_ssize_t slot_bytes, const Py_buffer *lengths, const Py_buffer *times)
{
    const int32_t *length = lengths->buf;
    size_t count = (size_t)lengths->shape[0];
    size_t entries = count > 0 ? count : 1;

    free(pacer->lateness_ns);
    pacer->lateness_ns = calloc(entries, sizeof(*pacer->lateness_ns));
    pacer->sent = 0;
    pacer->messages = calloc(entries, sizeof(*pacer->messages));
    pacer->vectors = calloc(entries, sizeof(*pacer->vectors));
    pacer->due_ns = calloc(entries, sizeof(*pacer->due_ns));
    if (pacer->lateness_ns == NULL || pacer->messages == NULL || pacer->vectors == NULL || pacer->due_ns == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(pacer->due_ns, times->buf, count * sizeof(*pacer->due_ns));
    for (size_t i = 0; i < count; i++) {
        pacer->vectors[i].iov_base = (char *)pacer->payload.buf + i * (size_t)slot_bytes;
        pacer->vectors[i].iov_len = (size_t)length[i];
        pacer->messages[i].msg_hdr.msg_iov = &pacer->vectors[i];
        pacer->messages[i].msg_hdr.msg_iovlen = 1;
    }
    pacer->count = count;
    return 0;
}

static bool is_running(Pacer *pacer)
{
    bool running;

    pthread_mutex_lock(&pacer->lock);
    running = pacer->running;
    pthread_mutex_unlock(&pacer->lock);
    return running;
}

static PyObject *pacer_start(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"buffer", "slot_bytes", "lengths", "times_ns", NULL};
    Pacer *pacer = (Pacer *)self;
    PyObject *buffer, *lengths_object, *times_object;
    Py_buffer payload, lengths, times;
    Py_ssize_t slot_bytes;
    uint64_t drained;
    int result;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnOO:start", keywords, &buffer, &slot_bytes, &lengths_object,
                                     &times_object))
        return NULL;
    if (PyObject_GetBuffer(buffer, &payload, PyBUF_SIMPLE) < 0)
        return NULL;
    if (take_integers(lengths_object, &lengths, "il", sizeof(int32_t), "lengths") < 0) {
        PyBuffer_Release(&payload);
        return NULL;
    }
    if (take_integers(times_object, &times, "lq", sizeof(int64_t), "times_ns") < 0) {
        PyBuffer_Release(&lengths);
        PyBuffer_Release(&payload);
        return NULL;
    }
    result = check_work(&payload, slot_bytes, &lengths, &times);
    /* From here to the hand-over nothing runs Python code, so no other thread can start or close in between. */
    if (result == 0)
        result = require_open(pacer);
    if (result == 0 && is_running(pacer)) {
        PyErr_SetString(PyExc_RuntimeError, "this pacer is still sending: wait for done_fd, or cancel");
        result = -1;
    }
    if (result < 0) {
        PyBuffer_Release(&times);
        PyBuffer_Release(&lengths);
        PyBuffer_Release(&payload);
        return NULL;
    }
    /* Releasing the earlier buffer can run Python code, so it goes last. */
    Py_buffer earlier = pacer->payload;
    bool held = pacer->holds_payload;
    pacer->holds_payload = false;
    release_work(pacer);
    pacer->payload = payload;
    pacer->holds_payload = true;
    result = prepare_work(pacer, slot_bytes, &lengths, &times);
    if (result == 0) {
        /* Empty if the last done was taken note of by reading; either way it is empty now. */
        if (read(pacer->done_fd, &drained, sizeof(drained)) < 0 && errno != EAGAIN) {
            PyErr_SetFromErrno(PyExc_OSError);
            result = -1;
        }
    }
    if (result == 0) {
        pthread_mutex_lock(&pacer->lock);
        pacer->retries = 0;
        pacer->error = 0;
        pacer->cancelled = false;
        pacer->running = true;
        pthread_cond_signal(&pacer->wake);
        pthread_mutex_unlock(&pacer->lock);
    }
    if (result < 0)
        release_work(pacer);
    if (held)
        PyBuffer_Release(&earlier);
    PyBuffer_Release(&times);
    PyBuffer_Release(&lengths);
    if (result < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *pacer_cancel(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Pacer *pacer = (Pacer *)self;

    if (require_open(pacer) < 0)
        return NULL;
    stop_sending(pacer);
    Py_RETURN_NONE;
}

static PyObject *pacer_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    shut_down((Pacer *)self);
    Py_RETURN_NONE;
}

static PyObject *pacer_lateness_ns(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Pacer *pacer = (Pacer *)self;
    PyObject *bytes, *view, *cast;
    size_t sent;

    if (require_open(pacer) < 0)
        return NULL;
    pthread_mutex_lock(&pacer->lock);
    sent = pacer->sent;
    pthread_mutex_unlock(&pacer->lock);
    /* The thread never changes an entry below `sent`. */
    bytes = PyBytes_FromStringAndSize((const char *)pacer->lateness_ns, (Py_ssize_t)(sent * sizeof(int64_t)));
    if (bytes == NULL)
        return NULL;
    view = PyMemoryView_FromObject(bytes);
    Py_DECREF(bytes);
    if (view == NULL)
        return NULL;
    cast = PyObject_CallMethod(view, "cast", "s", "q");
    Py_DECREF(view);
    return cast;
}

static PyObject *pacer_get_running(PyObject *self, void *Py_UNUSED(closure))
{
    Pacer *pacer = (Pacer *)self;

    return PyBool_FromLong(pacer->open && is_running(pacer));
}

static PyObject *pacer_get_sent(PyObject *self, void *Py_UNUSED(closure))
{
    Pacer *pacer = (Pacer *)self;
    size_t sent;

    if (require_open(pacer) < 0)
        return NULL;
    pthread_mutex_lock(&pacer->lock);
    sent = pacer->sent;
    pthread_mutex_unlock(&pacer->lock);
    return PyLong_FromSize_t(sent);
}

static PyObject *pacer_get_retries(PyObject *self, void *Py_UNUSED(closure))
{
    Pacer *pacer = (Pacer *)self;
    uint64_t retries;

    if (require_open(pacer) < 0)
        return NULL;
    pthread_mutex_lock(&pacer->lock);
    retries = pacer->retries;
    pthread_mutex_unlock(&pacer->lock);
    return PyLong_FromUnsignedLongLong(retries);
}

static PyObject *pacer_get_error(PyObject *self, void *Py_UNUSED(closure))
{
    Pacer *pacer = (Pacer *)self;
    int error;

    if (require_open(pacer) < 0)
        return NULL;
    pthread_mutex_lock(&pacer->lock);
    error = pacer->error;
    pthread_mutex_unlock(&pacer->lock);
    return PyLong_FromLong(error);
}

static PyObject *pacer_get_done_fd(PyObject *self, void *Py_UNUSED(closure))
{
    Pacer *pacer = (Pacer *)self;

    if (require_open(pacer) < 0)
        return NULL;
    return PyLong_FromLong(pacer->done_fd);
}

static PyObject *pacer_get_realtime(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((Pacer *)self)->realtime);
}

static PyMethodDef pacer_methods[] = {
    {"start", (PyCFunction)(void (*)(void))pacer_start, METH_VARARGS | METH_KEYWORDS,
     "start(buffer, slot_bytes, lengths, times_ns): send datagram i at times_ns[i]; returns at once."},
    {"cancel", pacer_cancel, METH_NOARGS, "Send no more; returns when the thread is idle."},
    {"close", pacer_close, METH_NOARGS, "Cancel, end the thread, release everything. Safe to call twice."},
    {"lateness_ns", pacer_lateness_ns, METH_NOARGS, "Send call minus due time of each datagram sent, int64 nanoseconds."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pacer_getset[] = {
    {"running", pacer_get_running, NULL, "Whether datagrams remain to be sent.", NULL},
    {"sent", pacer_get_sent, NULL, "Datagrams of the last start() that the kernel has taken.", NULL},
    {"retries", pacer_get_retries, NULL, "Send calls of the last start() that were refused for now and made again.", NULL},
    {"error", pacer_get_error, NULL, "Error number that ended the last start() early, or 0.", NULL},
    {"done_fd", pacer_get_done_fd, NULL, "File descriptor that is readable once nothing remains to be sent.", NULL},
    {"realtime", pacer_get_realtime, NULL, "Whether the thread runs under SCHED_FIFO.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pacer_slots[] = {
    {Py_tp_doc, "Pacer(fd, priority): sends datagrams on a connected socket, each at its time, from a native thread."},
    {Py_tp_new, pacer_new},
    {Py_tp_dealloc, pacer_dealloc},
    {Py_tp_methods, pacer_methods},
    {Py_tp_getset, pacer_getset},
    {0, NULL},
};

static PyType_Spec pacer_spec = {
    .name = "agents._pacer.Pacer",
    .basicsize = sizeof(Pacer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = pacer_slots,
};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &pacer_spec, NULL);
    int result;

    if (type == NULL)
        return -1;
    result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "agents._pacer",
    .m_doc = "A native sender thread: datagrams, each at its own time.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__pacer(void)
{
    return PyModuleDef_Init(&module_definition);
}
