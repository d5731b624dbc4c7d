// Package wire is the protocol between Caisson and its guest, the PID 1 of
// every container. It runs over the container's standard input and output: one
// ordered byte stream in each direction, which interleaves frames of many
// streams. Both ends link this package, which imports only the standard library
// (rank 0).
//
//	host (sandbox/guest)                            guest (cmd/caisson-guest)
//	--------------------                            -------------------------
//	config    0  {protocol, uids, bounds}    ─▶
//	                                         ◀─     hello     0  {what it observes}
//
//	open      1  {exec: argv, env, dir}      ─▶                                      one command
//	                                         ◀─     started   1  {pid}
//	data    1.0  bytes of stdin              ─▶
//	resize    1  rows, columns               ─▶                                      if exec.terminal
//	eof     1.0                              ─▶
//	                                         ◀─     data    1.1  bytes of stdout
//	                                         ◀─     data    1.2  bytes of stderr
//	credit  1.1  n more bytes may be sent    ─▶
//	cancel    1  {grace}                     ─▶
//	                                         ◀─     eof     1.1
//	                                         ◀─     eof     1.2
//	                                         ◀─     end       1  {exit, totals, hashes, kill}
//
//	open      3  {apply: size}               ─▶                                      one change
//	data    3.0  JSON of a workspace.Op      ─▶
//	eof     3.0                              ─▶
//	                                         ◀─     data    3.1  JSON of a workspace.Change
//	                                         ◀─     eof     3.1
//	                                         ◀─     end       3  {error}
//
//	open      5  {read: kind, path, most}    ─▶                                      one read, if config.view
//	                                         ◀─     data    5.1  a file's bytes, or a directory's entries, one a line
//	credit  5.1  n more bytes may be sent    ─▶
//	cancel    5  {}                          ─▶
//	                                         ◀─     eof     5.1
//	                                         ◀─     end       5  {info, more, error}
//
//	                                         ◀─     open      2  {accept: local, uid}       one connection, if config.egress
//	                                         ◀─     data    2.1  bytes of the program, also right behind it
//	data    2.0  bytes for the program       ─▶
//	                                         ◀─     credit  2.0
//	                                         ◀─     eof     2.1  the program's half-close
//	eof     2.0  the host's half-close       ─▶
//	cancel    2  {kill: reset}               ─▶
//	                                         ◀─     end       2  {reset}  the socket is closed
//	end       2  {}                          ─▶                           the guest may accept another
//
//	                                         ◀─     open      4  {lookup: name}
//	end       4  {address}                   ─▶
//
//	ping      0  8 bytes                     ─▶
//	                                         ◀─     pong      0  the same 8 bytes
//	(stream closed)                          ─▶     kills everything and exits
//
// A frame is a header of [HeaderSize] bytes, big-endian, and a payload:
//
//	u32 length of the payload │ u32 stream │ u8 type │ u8 channel │ payload
//
// The length is checked against the bound of its type before anything is
// allocated. Control payloads are JSON, data is raw.
//
// Stream 0 is the connection itself. The host opens odd streams, the guest even
// ones. Each side's ids strictly increase and are never reused, so a late frame
// can be told from a forged one. "open" opens a stream. "end", or "refused" if
// the stream never began, ends it; its server, the side that did not open it,
// sends that last. A relay, the stream of a connection, has two ends: the guest
// sends nothing after its end, and the host answers with another. So the host
// can count open streams, and knows that frames of any other stream are forged.
//
// A stream has up to three channels, each with one direction: 0 carries bytes
// from the host to the guest, 1 and 2 from the guest to the host. Long-lived
// commands (an MCP server's stdin and stdout) are exec streams without a bound
// on their live output. A connection that the guest accepts on the container's
// loopback is a stream that the guest opens, with channels 0 and 1.
//
// Each channel starts with a credit of [Window] bytes, or [RelayWindow] in a
// relay. Its sender never exceeds the credit; its receiver grants more as it
// consumes. So neither side's reader ever waits for a consumer: a stalled one
// blocks only its own channel, and a cancel or ping waits only for frames
// already in the pipe. Exceeding the credit is a protocol error, and a protocol
// error is the loss of the connection.
//
// Only the pipe can make the sender of a control frame wait. Data is cut into
// frames of [MaxData] bytes to keep this wait short.
package wire
