package guest

import (
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// egress holds the streams that the guest opened, and the commands by number.
type egress struct {
	mu       sync.Mutex
	handler  sandbox.EgressHandler
	lastID   uint32 // the highest that the guest opened
	relays   map[*relay]struct{}
	lookups  int
	commands map[int]*process
	lastNo   int
}

// Serve sets the session's handler; see sandbox.EgressServer.
func (c *Conn) Serve(h sandbox.EgressHandler) {
	c.egress.mu.Lock()
	defer c.egress.mu.Unlock()
	c.egress.handler = h
}

// takeOpen processes a stream that the guest opened.
func (c *Conn) takeOpen(f wire.Frame) error {
	var open wire.Open
	if err := wire.Decode(f.Payload, &open); err != nil {
		return err
	}
	config, e := c.o.Config.Egress, &c.egress
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.Stream%2 != 0 || f.Stream <= e.lastID {
		return fmt.Errorf("%w: stream %d opened by the guest", wire.ErrProtocol, f.Stream)
	}
	e.lastID = f.Stream
	switch {
	case open == (wire.Open{Accept: open.Accept}) && open.Accept != nil:
		if err := open.Accept.Check(config); err != nil {
			return err
		}
		if len(e.relays) == wire.MaxRelays {
			return fmt.Errorf("%w: more than %d connections", wire.ErrProtocol, wire.MaxRelays)
		}
		r := newRelay(c, f.Stream, *open.Accept)
		r.process = e.commands[sandbox.CommandNumber(r.accept.Local.Addr())]
		e.relays[r] = struct{}{}
		if !c.addCall(f.Stream, r) {
			r.conclude(c.lostError())
		}
		go r.serve(e.handler)
		return nil
	case open == (wire.Open{Lookup: open.Lookup}) && open.Lookup != nil && config != nil && config.Names:
		if !wire.IsName(open.Lookup.Name) {
			return fmt.Errorf("%w: lookup of %.40q, which is no name", wire.ErrProtocol, open.Lookup.Name)
		}
		if e.lookups == wire.MaxLookups {
			return fmt.Errorf("%w: more than %d lookups", wire.ErrProtocol, wire.MaxLookups)
		}
		e.lookups++
		go c.answerLookup(f.Stream, open.Lookup.Name, e.handler)
		return nil
	}
	return fmt.Errorf("%w: stream %d of the guest, of a kind that was not asked for", wire.ErrProtocol, f.Stream)
}

// addCall adds an open stream, unless the connection has ended.
func (c *Conn) addCall(id uint32, stream call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.calls[id] = stream
	return true
}

func (c *Conn) answerLookup(id uint32, name string, h sandbox.EgressHandler) {
	var answer wire.LookupAnswer
	if h != nil {
		if addr, ok := h.LookupName(c.life, name); ok {
			answer.Address = &addr
		}
	}
	c.endStream(id, answer, func() { c.egress.lookups-- })
}

// endStream sends the last frame of a stream that the guest opened. Just
// before, it calls forget with the lock held, to make room for another stream.
// So a guest that reads nothing can't make the host keep more answers than the
// bound.
func (c *Conn) endStream(id uint32, answer any, forget func()) {
	end, err := wire.JSON(id, wire.TypeEnd, answer)
	if err == nil {
		err = c.writer.SendAfter(func() {
			c.egress.mu.Lock()
			defer c.egress.mu.Unlock()
			forget()
		}, end)
	}
	if err != nil {
		c.lose(err)
	}
}

// addCommand returns a number for a command. It reuses numbers as late as
// possible, so that different commands rarely have the same one in records.
func (e *egress) addCommand(p *process) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		e.lastNo = e.lastNo%sandbox.MaxCommandNumber + 1
		if e.commands[e.lastNo] == nil { // a guest has far fewer streams
			e.commands[e.lastNo] = p
			return e.lastNo
		}
	}
}

// removeCommand ends the relays of a command that is over.
func (e *egress) removeCommand(number int) {
	if number == 0 {
		return
	}
	e.mu.Lock()
	p := e.commands[number]
	delete(e.commands, number)
	var ended []*relay
	for r := range e.relays {
		if p != nil && r.process == p {
			ended = append(ended, r)
		}
	}
	e.mu.Unlock()
	for _, r := range ended {
		r.abort(errCommandOver)
	}
}
