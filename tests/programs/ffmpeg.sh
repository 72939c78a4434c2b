#!/usr/bin/env bash
# ffmpeg: containers that are written to the end and then changed at the start.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
export AV_LOG_FORCE_NOCOLOR=1
make() { ffmpeg -nostdin -v error -y -f lavfi -i testsrc=duration=2:size=320x240:rate=15 -f lavfi -i sine=frequency=440:duration=2 -threads 1 -bitexact -fflags +bitexact "$@"; }
make -c:v mpeg4 -c:a aac a.mp4
make -c:v mpeg4 -c:a aac -movflags +faststart b.mp4
make -c:v ffv1 -c:a flac a.mkv
make -c:v mjpeg -c:a pcm_s16le a.avi
make -map 1 a.wav
make -map 0 -c:v png frame-%03d.png
make -c:v mpeg4 -c:a aac -f segment -segment_time 1 part-%d.mkv
for file in a.mp4 b.mp4 a.mkv a.avi a.wav; do
    ffmpeg -nostdin -v error -i "$file" -f md5 - | sed "s/^/$file /"
done
ffmpeg -nostdin -v error -y -i a.mkv -c copy copy.mkv
ffmpeg -nostdin -v error -i copy.mkv -map 0:v -f md5 -
find . -type f | sort
