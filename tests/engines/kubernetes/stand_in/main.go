// In place of Python in a fake pod: answers as remote_exec does, and echoes its input.
// What it reports of its node is in a file beside it, with the ending .report.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
)

var length = regexp.MustCompile(`len\(b\)<(\d+)`)

func must(err error) {
	if err != nil {
		os.Exit(1)
	}
}

func main() {
	input := bufio.NewReader(os.Stdin)
	line, err := input.ReadString('\n')
	must(err)
	size, err := strconv.Atoi(length.FindStringSubmatch(line)[1])
	must(err)
	_, err = input.Discard(size)
	must(err)
	os.Stdout.WriteString("\x00mnode remote exec 2\n")
	serve(input)
}

// serve runs commands until the input ends.
func serve(input io.Reader) {
	var one sync.Mutex
	send := func(kind byte, number uint32, payload []byte) {
		one.Lock()
		defer one.Unlock()
		frame := binary.BigEndian.AppendUint32([]byte{kind}, number)
		frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
		os.Stdout.Write(append(frame, payload...))
	}
	go func() {
		for range time.Tick(time.Second) {
			send('B', 0, nil)
		}
	}()
	for {
		header := make([]byte, 9)
		if _, err := io.ReadFull(input, header); err != nil {
			return
		}
		number := binary.BigEndian.Uint32(header[1:])
		payload := make([]byte, binary.BigEndian.Uint32(header[5:]))
		_, err := io.ReadFull(input, payload)
		must(err)
		switch header[0] {
		case 'O':
			var order struct{ Argv []string }
			must(json.Unmarshal(payload, &order))
			if order.Argv[1] == "-c" {
				report, err := os.ReadFile(os.Args[0] + ".report")
				must(err)
				send('o', number, report)
				send('X', number, []byte("0"))
			}
		case 'D':
			send('t', number, binary.BigEndian.AppendUint32(nil, uint32(len(payload))))
			send('o', number, payload)
		case 'E':
			send('X', number, []byte("0"))
		}
	}
}
