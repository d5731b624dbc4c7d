// Package execsock lets a user run a command in a live session of another
// Caisson process. The process that owns a session holds the only connection to
// its guest, so it runs the command itself; the asking process sends what to
// run, and gets the output, over a socket in the session's own folder:
//
//	asks                                  owns the session
//	request {"argv":["sh","-c","ls"]} ─▶
//	stdin …, end of stdin             ─▶  at most [window] bytes not yet read
//	                                  ◀─  credit: so many more bytes of stdin
//	                                  ◀─  stdout …, stderr …
//	cancel, or hanging up             ─▶  ends the command as Ctrl-C does
//	                                  ◀─  result {"code":0}
//
// A frame is a byte of kind, four bytes of length (big endian) and so many
// bytes. The folder is the user's alone, and a peer of another uid is refused.
// What either side sends is bounded and checked; one that breaks the rules is
// hung up on, which cancels its command.
package execsock
