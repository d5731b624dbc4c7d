package service

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

const (
	// shortestInterval is the minimum time between two tests, whatever an image
	// asks for.
	shortestInterval = 100 * time.Millisecond
	maxProgram       = 200
)

// Plan is a checked service with its image's configuration.
type Plan struct {
	spec       sandbox.Service
	argv, test []string
	check      images.HealthCheck
	dir        string // the commands' directory
	enter      string // a directory that commands can't start in, or ""
}

// NewPlan returns the plan for a service on an image, with the workspace at
// mountPoint. Its error wraps sandbox.ErrInvalid.
func NewPlan(spec sandbox.Service, config images.Config, mountPoint string) (*Plan, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	p := &Plan{spec: spec, argv: slices.Clone(spec.Args)}
	if len(p.argv) == 0 {
		p.argv = slices.Concat(config.Entrypoint, config.Cmd)
	}
	if len(p.argv) == 0 || p.argv[0] == "" {
		return nil, fmt.Errorf("service: %w: the image has neither ENTRYPOINT nor CMD: name the program", sandbox.ErrInvalid)
	}
	check := spec.HealthCheck
	if check == nil {
		check = config.HealthCheck
	}
	if check != nil {
		var err error
		if p.check, err = check.WithDefaults(); err == nil {
			p.test, err = p.check.Argv(config.Shell)
		}
		if err != nil {
			return nil, fmt.Errorf("service: %w", sandbox.ImageError(err))
		}
		p.check.Timeout = min(p.check.Timeout, sandbox.MaxServiceTime)
		p.check.Interval = max(p.check.Interval, shortestInterval)
		p.check.StartInterval = max(p.check.StartInterval, shortestInterval)
	}
	dir := spec.Dir
	if dir == "" && config.WorkingDir != "" {
		dir = "/" + config.WorkingDir
	}
	if dir != "" {
		p.setDir(path.Clean(dir), mountPoint)
	}
	return p, nil
}

// setDir sets the working directory. A shell enters a directory outside the
// workspace, because no command can start in one.
func (p *Plan) setDir(dir, mountPoint string) {
	if dir == mountPoint || strings.HasPrefix(dir, mountPoint+"/") {
		p.dir = dir
		return
	}
	p.enter = dir
}

// command returns a command that runs the service or a test.
func (p *Plan) command(argv []string, identity int) sandbox.Command {
	if p.enter != "" {
		argv = slices.Concat([]string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, p.enter}, argv)
	}
	return sandbox.Command{Argv: argv, Env: p.spec.Env, Dir: p.dir, Identity: identity}
}

func (p *Plan) program() string {
	name := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(p.argv[0], "?"))
	if len(name) > maxProgram {
		name = strings.ToValidUTF8(name[:maxProgram], "") + "…"
	}
	return name
}

// hashArgs returns the digest of the arguments, each followed by a NUL.
func (p *Plan) hashArgs() string {
	sum := sha256.Sum256([]byte(strings.Join(p.argv, "\x00") + "\x00"))
	return hex.EncodeToString(sum[:])
}
