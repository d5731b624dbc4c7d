package main

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/telemetry"
)

// exporter is the export of telemetry of a process, which its first session opens. The
// nil exporter exports nothing.
type exporter struct {
	opened sync.Once
	to     *telemetry.Exporter
	err    error

	mu      sync.Mutex
	warning string
	logger  *zap.Logger
}

// observer returns what exports the records of sessions, nil for nothing. What is wrong
// with the environment is a warning, because it may be meant for other programs.
func (s *settings) observer() (func(record.Record, []byte), error) {
	x := s.deps.telemetry
	if x == nil {
		return nil, nil
	}
	x.opened.Do(func() { x.open(s) })
	if x.to == nil {
		return nil, x.err
	}
	return x.to.Observe, nil
}

func (x *exporter) open(s *settings) {
	o, err := s.conf.Telemetry.Options(s.environ.lookup)
	if err != nil {
		x.err = err
		return
	}
	o.Version, o.NoParent, o.Warn = programVersion(), s.shared, x.warn
	x.to, err = telemetry.Open(context.Background(), o)
	if e, ok := errors.AsType[*telemetry.SettingError](err); ok && e.Name == "endpoint" {
		x.err = &config.Error{Where: "telemetry.endpoint", Message: e.Reason, Hint: "write it as http://localhost:4318", Err: err}
	} else if err != nil {
		x.warn(err.Error())
	}
}

// warn keeps a warning for the end of the program, where it is in no one's way, or logs
// it.
func (x *exporter) warn(text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.warning = text; x.logger != nil {
		x.logger.Warn("telemetry is not exported", zap.String("why", text))
	}
}

// log makes warnings go to a log.
func (x *exporter) log(to *zap.Logger) {
	if x == nil {
		return
	}
	x.mu.Lock()
	warning := x.warning
	x.logger = to
	x.mu.Unlock()
	if warning != "" {
		x.warn(warning)
	}
}

// close sends what is left, and prints the warning if no log has it.
func (x *exporter) close(ctx context.Context, a *app) {
	if x == nil {
		return
	}
	x.to.Close(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.warning != "" && x.logger == nil {
		a.printLines("caisson: telemetry is not exported: " + x.warning)
	}
}
