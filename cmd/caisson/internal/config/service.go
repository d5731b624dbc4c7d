package config

import (
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// Service is the long-lived program of the sandbox.
type Service struct {
	Run         *string     `yaml:"run" flag:"service" value:"WHAT" group:"Sandbox" shown:"none" enum:"none image command" doc:"program that runs beside the commands: none, image (its ENTRYPOINT and CMD) or command (service.command)"`
	Command     []string    `yaml:"command" doc:"the program and its arguments; it runs unless run says otherwise"`
	Dir         *string     `yaml:"dir" doc:"its working directory in the sandbox; the image's WORKDIR otherwise"`
	AsAgent     *bool       `yaml:"as_agent" default:"false" doc:"run it as the user of the commands, which can then stop and read it"`
	StartTime   *Duration   `yaml:"start_time" default:"5m" doc:"longest time until it is healthy"`
	HealthCheck HealthCheck `yaml:"health_check" doc:"the health check that it must pass to have started, instead of the image's HEALTHCHECK"`
}

// HealthCheck is a health check with the names of Docker Compose.
type HealthCheck struct {
	Test          []string  `yaml:"test" doc:"CMD and a program with its arguments, CMD-SHELL and a shell command, or NONE"`
	Interval      *Duration `yaml:"interval" doc:"time between tests; the default is 30s"`
	Timeout       *Duration `yaml:"timeout" doc:"longest time of one test; the default is 30s"`
	StartPeriod   *Duration `yaml:"start_period" doc:"time after the start in which failures do not count"`
	StartInterval *Duration `yaml:"start_interval" doc:"time between tests in the start period; the default is 5s"`
	Retries       *Count    `yaml:"retries" doc:"number of failures in a row after which the start has failed; the default is 3"`
}

// UserService returns the service of the sandbox, or nil.
func (c *Config) UserService() *sandbox.Service {
	in := c.Service
	run := "none"
	if len(in.Command) > 0 {
		run = "command"
	}
	run = valueOr(in.Run, run)
	if run == "none" {
		return nil
	}
	out := &sandbox.Service{Dir: valueOr(in.Dir, ""), AsAgent: *in.AsAgent, StartTime: time.Duration(*in.StartTime), HealthCheck: in.HealthCheck.check()}
	if run == "command" {
		out.Args = in.Command
	}
	return out
}

// check returns the health check, or nil without a test.
func (h HealthCheck) check() *images.HealthCheck {
	if h.Test == nil {
		return nil
	}
	return &images.HealthCheck{
		Test: h.Test, Retries: int(valueOr(h.Retries, 0)),
		Interval: time.Duration(valueOr(h.Interval, 0)), Timeout: time.Duration(valueOr(h.Timeout, 0)),
		StartPeriod: time.Duration(valueOr(h.StartPeriod, 0)), StartInterval: time.Duration(valueOr(h.StartInterval, 0)),
	}
}

// checkService refuses services that no sandbox could have.
func (c *Config) checkService() error {
	in := c.Service
	h := in.HealthCheck
	if h.Test == nil && (h.Interval != nil || h.Timeout != nil || h.StartPeriod != nil || h.StartInterval != nil || h.Retries != nil) {
		return &Error{Where: "service.health_check", Message: "it has no test", Hint: "write the test too, such as [CMD-SHELL, curl -f http://127.0.0.1/]"}
	}
	if valueOr(in.Run, "") == "command" && len(in.Command) == 0 {
		return &Error{Where: "service.run", Message: "service.command is missing", Hint: "set service.command to the program and its arguments"}
	}
	s := c.UserService()
	if s == nil {
		return nil
	}
	if s.Args == nil && *c.Image == string(images.SchemeHost) {
		return &Error{Where: "service.run", Message: "image host has no ENTRYPOINT or CMD", Hint: "name another image with image, or the program with service.command"}
	}
	if err := s.Check(); err != nil {
		return &Error{Where: "service", Message: strings.TrimPrefix(err.Error(), "service: "+sandbox.ErrInvalid.Error()+": ")}
	}
	return nil
}
