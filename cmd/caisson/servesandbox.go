package main

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// prepareSandbox makes the options of a sandbox without a model that a client asks for.
func (h *serverHost) prepareSandbox(ctx context.Context, in server.NewSandbox) (o runner.Options, _ func(), err error) {
	var ends []func()
	done := func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	defer func() {
		if err != nil {
			done()
			err = prepareError(err)
		}
	}()
	var s *settings
	var w *runner.Workspace
	if in.Workspace == "" {
		s, err = loadClientSettings(h.app, h.flags.settings, h.flags.profile)
	} else if s, w, err = h.openWorkspace(in.Workspace); err == nil {
		ends = append(ends, func() { _ = w.Close() }) // it was only read
		err = s.checkStartable(w)
	}
	if err != nil {
		return o, nil, err
	}
	hidden := append(s.knownSecrets(config.SelectedModel{}), h.tokenSecrets()...)
	dir, err := sessiondir.Create(h.app.environ.stateDir(), hidden)
	if err != nil {
		return o, nil, err
	}
	ends = append(ends, func() { _ = dir.Close() }) // an empty directory that stays does no harm
	if w == nil {
		ends = append(ends, func() {
			if err := errors.Join(sessiondir.DiscardChanges(dir.Path), sessiondir.RemoveWorkspace(h.app.environ.stateDir(), dir.Session)); err != nil {
				h.log.Error("remove the workspace of a sandbox", zap.String("session", dir.Session), zap.Error(err))
			}
		})
		if w, err = runner.MakeWorkspace(dir); err != nil {
			return o, nil, err
		}
		ends = append(ends, func() { _ = w.Close() }) // it is removed next
	}
	wishes, err := s.conf.AskSandbox(config.AskedSandbox{Mode: in.Mode, Image: in.Image, Mounts: in.Mounts, Resources: in.Resources})
	if err != nil {
		return o, nil, requestError(err)
	}
	b, err := h.newBuilder(s, w, wishes)
	if err != nil {
		return o, nil, err
	}
	ends = append(ends, func() {
		b.backends.close()
		_ = runner.CloseMounts(b.mounts) // only directories
	})
	b.orders = true
	b.setLogger(dir.Log)
	if o, err = b.sandboxOptions(ctx, h); err != nil {
		return o, nil, err
	}
	o.Dir, o.Secrets, o.InstructionFiles = dir, hidden, false
	return o, done, nil
}
