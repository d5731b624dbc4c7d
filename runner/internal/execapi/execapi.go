// Package execapi lets a user run a command in a live session of another Caisson process, or end
// a session that waits for that. The session's process holds the only connection to the guest,
// so it runs the command. The client sends the command and receives its output over a socket in
// the session's directory.
//
// Both sides exchange frames of package wire, on one stream per connection:
//
//	client                                 owner of the session
//	open    {"argv":["c2g="],"stdin":true} ─▶
//	data, eof on channel 0: stdin          ─▶  at most [wire.Window] unread bytes
//	                                       ◀─  credit: more bytes of stdin allowed
//	                                       ◀─  data on channels 1 and 2: stdout, stderr
//	resize: rows, columns                  ─▶  of the command's terminal
//	cancel, or closing the connection      ─▶  ends the command, as Ctrl-C does
//	                                       ◀─  end     {"status":{"exit_code":0}}
//
// A command on a terminal may be detachable: then closing the connection only leaves it, and a
// request with "attach" goes back to it. The owner keeps its last output meanwhile.
//
// A request for the end of the session, {"end":true}, is answered at once in the same way.
//
// The directory is private to its user, and peers with another uid are refused. All frames are
// bounded and checked. After a protocol error the connection is closed, which cancels its command.
package execapi

import (
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Request is a command to run.
//
//	{"argv":["c2g=","LWM=","bHM="],"dir":"/workspace/sub","stdin":true,"timeout_ms":60000}
type Request struct {
	// Argv is the program and its arguments. They need not be UTF-8.
	Argv [][]byte `json:"argv"`
	// Dir is a directory in the container; "" is the workspace.
	Dir string `json:"dir,omitempty"`
	// Stdin reports whether the client sends standard input.
	Stdin bool `json:"stdin,omitempty"`
	// Env has variables (NAME=value) to add to the command's environment.
	Env []string `json:"env,omitempty"`
	// Terminal is the size of the command's terminal, nil without one. Resizes
	// delivers later sizes, which are sent as frames; the server's channel has the
	// latest one.
	Terminal *sandbox.TerminalSize       `json:"terminal,omitempty"`
	Resizes  <-chan sandbox.TerminalSize `json:"-"`
	// TimeoutMS may be zero for the session's timeout.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Detachable makes a command with a terminal go on without its client.
	Detachable bool `json:"detachable,omitempty"`
	// Attach asks for the terminal of such a command instead of running one: by the beginning
	// of the command's id, or "" for the only one.
	Attach *string `json:"attach,omitempty"`
	// End asks for the end of the session instead of running a command.
	End bool `json:"end,omitempty"`
	// PID is the client's process according to the kernel. ID is a detachable command's id.
	// They are not sent.
	PID int32  `json:"-"`
	ID  string `json:"-"`
}

// Args returns Argv as strings.
func (r Request) Args() []string {
	var args []string
	for _, a := range r.Argv {
		args = append(args, string(a))
	}
	return args
}

// Result is the end of the command, or why it was not run.
type Result struct {
	Status sandbox.ExitStatus `json:"status"`
	sandbox.Shortage
	// Killed counts the processes that had to be killed, Left the ones that survived.
	Killed int `json:"killed,omitempty"`
	Left   int `json:"left,omitempty"`
	// Detached is set if the command goes on without this client.
	Detached bool `json:"detached,omitempty"`
	// Failure is set if the command was not run, or its end is unknown.
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is the reason for a missing result: a kind for programs, cause and hint for people.
type Failure struct {
	Kind  string `json:"kind"`
	Cause string `json:"cause"`
	Hint  string `json:"hint"`
}

const (
	// stream is the id of a connection's only stream.
	stream = 1

	channelStdin, channelStdout, channelStderr = 0, 1, 2
)

// output sends what is written to it as data of a channel.
type output struct {
	frames  *wire.Writer
	channel uint8
	before  func() // called before each frame; may be nil
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
