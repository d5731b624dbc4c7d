// Package execapi lets a user run a command in a live session of another Caisson
// process, and end a session that waits for that. The process that owns a session holds the only connection to its
// guest. It therefore runs the command itself; the client sends the command and
// receives its output over a socket in the session's own directory.
//
// The two sides exchange the frames of package wire, on one stream per
// connection:
//
//	client                                 owner of the session
//	open    {"argv":["c2g="],"stdin":true} ─▶
//	data, eof on channel 0: stdin          ─▶  at most [wire.Window] unread bytes
//	                                       ◀─  credit: more bytes of stdin allowed
//	                                       ◀─  data on channels 1 and 2: stdout, stderr
//	cancel, or closing the connection      ─▶  ends the command, as Ctrl-C does
//	                                       ◀─  end     {"status":{"exit_code":0}}
//
// A request for the end of the session, {"end":true}, has the same answer at once.
//
// The directory is private to its user, and a peer with another uid is refused.
// All frames are bounded and checked. After a protocol error the connection is
// closed, which cancels its command.
package execapi

import (
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Request describes the command to run.
//
//	{"argv":["c2g=","LWM=","bHM="],"dir":"/workspace/sub","stdin":true,"timeout_ms":60000}
type Request struct {
	// Argv is the program and its arguments, as bytes: they need not be UTF-8.
	Argv [][]byte `json:"argv"`
	// Dir is a directory in the container; "" is the workspace.
	Dir string `json:"dir,omitempty"`
	// Stdin reports whether the client sends standard input.
	Stdin bool `json:"stdin,omitempty"`
	// TimeoutMS is zero for the session's own timeout.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// End asks for the end of the session in place of a command.
	End bool `json:"end,omitempty"`
	// PID is the client's process, as the kernel reports it; it is not sent.
	PID int32 `json:"-"`
}

// Result is the end of the command, or the reason why it was not run.
type Result struct {
	Status sandbox.ExitStatus `json:"status"`
	// Killed counts the processes that had to be killed, Left those that could
	// not be.
	Killed int `json:"killed,omitempty"`
	Left   int `json:"left,omitempty"`
	// Failure is set where the command was not run, or its end is unknown.
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is the reason for a missing result: its kind for programs, and cause and
// hint for people.
type Failure struct {
	Kind  string `json:"kind"`
	Cause string `json:"cause"`
	Hint  string `json:"hint"`
}

const (
	// stream is the id of the only stream of a connection.
	stream = 1

	channelStdin, channelStdout, channelStderr = 0, 1, 2
)

// output sends what is written to it as data of one channel.
type output struct {
	frames  *wire.Writer
	channel uint8
	before  func() // is called before each frame; may be nil
}

// Write sends p in frames of at most [wire.MaxData] bytes.
func (o output) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		piece := p[sent:min(len(p), sent+wire.MaxData)]
		if o.before != nil {
			o.before()
		}
		if err := o.frames.Send(wire.Frame{Stream: stream, Type: wire.TypeData, Channel: o.channel, Payload: piece}); err != nil {
			return sent, err
		}
		sent += len(piece)
	}
	return sent, nil
}
