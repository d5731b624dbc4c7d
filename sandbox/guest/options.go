package guest

import (
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Options says how to speak to a guest.
type Options struct {
	// Conn is the container's standard input (Write) and output (Read), each
	// one plain byte stream without the engine's own framing. Dial takes it
	// over in every case: Conn.Close, a failed Dial and the loss of the
	// connection close it. Its Close must unblock Read and Write; closing it is what
	// makes the guest exit.
	Conn io.ReadWriteCloser
	// Config is what the guest is told. Protocol is filled in; see [NewConfig]
	// for one made from a spec.
	Config wire.Config
	// AnswerTime is how long the guest may take to answer a hello, a ping, a
	// start or a cancel (after its grace period) before the connection is lost;
	// zero means [DefaultAnswerTime].
	AnswerTime time.Duration
	// Logger gets what can't be returned; nil discards.
	Logger *zap.Logger
}

// DefaultAnswerTime is when a guest counts as lost: long enough for a machine
// under a fork bomb, and the bound that the design gives for cancelling.
const DefaultAnswerTime = 30 * time.Second
