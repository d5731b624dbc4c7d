package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
)

// ErrUnhealthy is for a [Service] that was not healthy in time or ended while
// it started; see [ServiceError].
var ErrUnhealthy = errors.New("service not healthy")

// DefaultServiceTime is the default of [Service.StartTime].
const DefaultServiceTime = 5 * time.Minute

// MaxServiceTime is the longest [Service.StartTime].
const MaxServiceTime = 24 * time.Hour

// ServiceIdentity is the identity of a [Service] without AsAgent.
const ServiceIdentity = 1

// Service is a long-lived program in a sandbox, such as a server that commands
// use. Create starts it with a command's environment, limits and protections,
// and returns once a health check has succeeded. Its health is not checked
// after that. It is not restarted, and ends with the sandbox.
type Service struct {
	// Args are the program and its arguments; empty means the image's ENTRYPOINT
	// and CMD.
	Args []string
	// Dir is the working directory, an absolute path in the container. Empty
	// means the image's WORKDIR or, without one, the default of Command.Dir.
	Dir string
	// Env is the whole environment, like Command.Env.
	Env []string
	// AsAgent runs the service as the agent's user. The agent's commands can
	// then stop and read it, and it can change their files. Otherwise it runs
	// as [ServiceIdentity] if the sandbox has several identities.
	AsAgent bool
	// HealthCheck is the check that ends the start; nil means the image's.
	// Without one, or with a test of NONE, Create only waits a quarter of a
	// second to see whether the service ends at once.
	HealthCheck *images.HealthCheck
	// StartTime bounds the time until a test succeeds; zero means
	// [DefaultServiceTime].
	StartTime time.Duration
	// Watch, if not nil, is called when the sandbox is attested and before the
	// service starts. It may wait. The service ends with the context it
	// returns, and Create fails with its error.
	Watch func(ctx context.Context, a Attestation) (context.Context, error)
}

// Check returns an error that wraps [ErrInvalid] if no sandbox could have the
// service.
func (s Service) Check() error {
	if err := s.check(); err != nil {
		return fmt.Errorf("service: %w: %w", ErrInvalid, err)
	}
	return nil
}

func (s Service) check() error {
	if s.Dir != "" && (!path.IsAbs(s.Dir) || strings.ContainsRune(s.Dir, 0)) {
		return fmt.Errorf("its directory %q is not an absolute path", s.Dir)
	}
	if s.StartTime < 0 || s.StartTime > MaxServiceTime {
		return fmt.Errorf("its start time is %s: want at most %s", s.StartTime, MaxServiceTime)
	}
	if len(s.Args) > 0 && s.Args[0] == "" {
		return errors.New("its program has no name")
	}
	if _, _, err := images.NewConfig(images.Config{Cmd: s.Args}); err != nil {
		return err
	}
	if s.HealthCheck == nil {
		return nil
	}
	_, err := s.HealthCheck.WithDefaults()
	return err
}

// ServiceProcess is a sandbox's service. Its methods are safe for concurrent
// use.
type ServiceProcess interface {
	Process
	// Done is closed when the service has ended. Wait then returns at once.
	Done() <-chan struct{}
	// Output returns the first and the last bytes that the service has written
	// so far, both streams in order.
	Output() string
}

// ServiceError is the error of a [Service] that failed to start. It wraps
// [ErrUnhealthy] and the cause.
type ServiceError struct {
	// Program is the program's name, Err the cause.
	Program string
	Err     error
	// Output is the service's output, TestOutput the last test's: the first and
	// the last bytes.
	Output, TestOutput string
}

const maxQuoted = 1000

func (e *ServiceError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %q %v", ErrUnhealthy, e.Program, e.Err)
	for _, o := range []struct{ of, text string }{{"its output", e.Output}, {"output of the test", e.TestOutput}} {
		quoted := strings.TrimSpace(o.text)
		if quoted == "" {
			continue
		}
		if n := len(quoted) - maxQuoted; n > 0 {
			quoted = "…" + strings.ToValidUTF8(quoted[n:], "")
		}
		fmt.Fprintf(&b, "; %s: %q", o.of, quoted)
	}
	return b.String()
}

func (e *ServiceError) Unwrap() []error { return []error{ErrUnhealthy, e.Err} }
