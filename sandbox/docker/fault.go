package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api"
	"github.com/docker/docker/client"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

// ErrNotShared means that the engine can't mount the workspace because it does
// not see this machine's file system: it is remote, or its socket is shared
// with a container. It comes with sandbox.ErrUnavailable; another backend may
// work.
var ErrNotShared = lifecycle.ErrNotShared

// errDeadline is the cause if a call took too long.
var errDeadline = errors.New("no answer in time")

func callWithin[T any](ctx context.Context, limit time.Duration, what string, call func(context.Context) (T, error)) (T, error) {
	limited, cancel := withDeadline(ctx, limit)
	defer cancel()
	value, err := call(limited)
	if err != nil {
		return value, classifyError(limited, what, err)
	}
	return value, nil
}

func callNoResult(ctx context.Context, limit time.Duration, what string, call func(context.Context) error) error {
	_, err := callWithin(ctx, limit, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// callToEnd is callWithin for a call that creates something: when ctx ends, it
// still waits up to grace for the answer.
func callToEnd[T any](ctx context.Context, limit, grace time.Duration, what string, call func(context.Context) (T, error)) (T, error) {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		late := time.NewTimer(grace)
		defer late.Stop()
		select {
		case <-late.C:
			cancel(context.Cause(ctx))
		case <-inner.Done():
		}
	})()
	return callWithin(inner, limit, what, call)
}

// tooOld is part of an engine's answer, with status 400, to an API version
// below the oldest it accepts (Docker 20.10 to 29). Older engines' answers name
// no version.
const tooOld = "Minimum supported API version is"

// classifyError wraps a call's error in one of the sandbox's classes. For
// ErrNotFound the caller adds the hint.
func classifyError(ctx context.Context, what string, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause != nil && errors.Is(cause, errDeadline):
		return fmt.Errorf("%s: %w: %w: the engine may hang: see its log", what, sandbox.ErrUnavailable, cause)
	case cause != nil:
		return fmt.Errorf("%s: %w", what, cause)
	case errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "permission denied while trying to connect"):
		return fmt.Errorf("%s: %w: this user may not use the engine's socket: join its group (docker), or run as root: %w", what, sandbox.ErrUnavailable, fs.ErrPermission)
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("%s: %w: no engine answers there: start it, or choose another backend: %w", what, sandbox.ErrUnavailable, err)
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%s: %w: %w", what, sandbox.ErrNotFound, err)
	case errdefs.IsInvalidArgument(err) && strings.Contains(err.Error(), tooOld):
		return fmt.Errorf("%s: %w: the engine takes only newer versions of its API than this Caisson speaks (up to %s): "+
			"update Caisson, or let the engine take older ones (min-api-version in daemon.json): %w", what, sandbox.ErrUnsupported, api.DefaultVersion, err)
	case strings.Contains(err.Error(), "bind source path does not exist"):
		return fmt.Errorf("%s: %w: %w: use mode copy, or an engine of this machine: %w", what, sandbox.ErrUnavailable, ErrNotShared, err)
	}
	return fmt.Errorf("%s: %w: %w", what, sandbox.ErrUnavailable, err)
}
