package workspace

// Room is how much of folders may still be taken: entries, and bytes of their
// paths and link targets.
type Room struct {
	Entries int
	Bytes   int64
}

func (o *ReaderOptions) room() Room { return Room{Entries: o.MaxEntries, Bytes: o.MaxTextBytes} }

// Fits says whether e may be taken too.
func (r Room) Fits(e Entry) bool { return r.Entries > 0 && e.text() <= r.Bytes }

// Take takes room for e.
func (r *Room) Take(e Entry) {
	r.Entries--
	r.Bytes -= e.text()
}

// empty says that nothing fits any more.
func (r Room) empty() bool { return r.Entries <= 0 || r.Bytes <= 0 }

// text is how many bytes are held of an entry beside its fixed size.
func (e *Entry) text() int64 { return int64(len(e.Path) + len(e.Target)) }

// within gives the room that was asked for as far as there is so much; a zero
// asks for all.
func (r Room) within(most Room) Room {
	return Room{Entries: bound(r.Entries, most.Entries), Bytes: bound(r.Bytes, most.Bytes)}
}

func bound[T int | int64](asked, most T) T {
	if asked <= 0 || asked > most {
		return most
	}
	return asked
}
