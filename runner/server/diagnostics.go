package server

import (
	"errors"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// diagnostics is the log and the metrics of a server, which its parts share.
type diagnostics struct {
	log *zap.Logger
	// strays logs answers to no live session and requests that lack a role. It is
	// bounded.
	strays  *zap.Logger
	metrics *metrics
}

// At most strayMost entries of diagnostics.strays are logged per strayEvery, so
// that a client that guesses IDs can't fill the log.
const (
	strayEvery = time.Minute
	strayMost  = 100
)

func newDiagnostics(log *zap.Logger) *diagnostics {
	if log == nil {
		log = zap.NewNop()
	}
	strays := log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, strayEvery, strayMost, 0)
	}))
	return &diagnostics{log: log, strays: strays, metrics: newMetrics()}
}

// writeBytes writes a response. The client may be gone.
func (d *diagnostics) writeBytes(w io.Writer, text []byte) {
	if _, err := w.Write(text); err != nil {
		d.log.Debug("write answer", zap.Error(err))
	}
}

// errStopping ends what runs when the server stops.
var errStopping = errors.New("the server stops")
