package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/service"
)

func validateService(spec sandbox.Spec) error {
	switch {
	case spec.Service == nil:
		return nil
	case spec.Workspace.Unguarded:
		return fmt.Errorf("%w: a sandbox with an unguarded workspace runs no service", sandbox.ErrInvalid)
	}
	return spec.Service.Check()
}

// planService finds out what the service runs, once the image is known and
// before anything runs.
func (s *Sandbox) planService(context.Context) error {
	spec := s.prep.Spec
	if spec.Service == nil {
		return nil
	}
	var err error
	s.prep.service, err = service.NewPlan(*spec.Service, s.prep.Config, spec.Workspace.MountPoint())
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Image, err)
	}
	return nil
}

// startService starts the service and waits until it is healthy. Other starts
// don't wait for it.
func (s *Sandbox) startService(ctx context.Context) error {
	plan := s.prep.service
	if plan == nil {
		return nil
	}
	life := context.WithoutCancel(ctx)
	if watch := s.prep.Spec.Service.Watch; watch != nil {
		var err error
		if life, err = watch(ctx, s.attestation); err != nil {
			return fmt.Errorf("start service: %w", err)
		}
	}
	var err error
	s.service, err = service.Start(ctx, plan, service.Options{
		Start: s.link.conn.Start, Life: life, Identities: s.attestation.Identities, Notify: s.prep.Spec.Notify,
	})
	if err != nil {
		return s.status.explainServiceFailure(err)
	}
	attested := s.service.Attestation()
	s.attestation.Service = &attested
	return nil
}

// explainServiceFailure adds the reason if the sandbox was lost while its
// service started. To Create's caller that is ErrUnavailable, not ErrLost.
func (s *status) explainServiceFailure(err error) error {
	if !errors.Is(err, sandbox.ErrLost) {
		return err
	}
	<-s.done // closed when the guest's connection ends
	return fmt.Errorf("%w: the sandbox ended while its service started: %w", sandbox.ErrUnavailable, s.lossError())
}
