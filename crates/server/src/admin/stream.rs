//! The text of an answer on its way to a client: piece by piece, no faster than the client takes them.
//!
//! An answer that fits into one piece has its length in the head of the response. A longer one is sent in chunks. One that cannot be sent to
//! its end is cut off, so that no client takes it for a complete one. Never holds more than two pieces.

use super::answers::Held;
use super::service::refuse;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A piece is sent once it has so many bytes.
const PIECE_BYTES: usize = 16 << 10;
/// How long a client may take for a piece while others wait for memory that it holds.
const WANTED: Duration = Duration::from_secs(10);
/// How long a client may take for all pieces of a response while others wait for memory that it holds. Shorter than others wait.
const WANTED_IN_ALL: Duration = Duration::from_secs(45);
/// How long a client may take for a piece when no other waits.
const STALL: Duration = Duration::from_secs(60);

/// The client has gone, or does not take its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

enum Piece {
    /// Others follow.
    More(Bytes),
    /// The end of the answer.
    Last(Bytes),
}

/// Where an answer is written.
pub(super) struct Writer {
    buffer: String,
    pieces: mpsc::Sender<Piece>,
    /// The memory of the question, until it is answered.
    question: Option<Held>,
    /// How long the client has let the pieces of the response wait.
    waited: Duration,
}

impl Writer {
    /// Write text; `held` is the memory of the answer.
    pub(super) async fn text(&mut self, text: &str, held: Option<&Held>) -> Result<(), Gone> {
        self.buffer.push_str(text);
        if self.buffer.len() < PIECE_BYTES {
            return Ok(());
        }
        let mut piece = std::mem::take(&mut self.buffer);
        piece.shrink_to_fit();
        let began = Instant::now();
        let place = loop {
            let place = tokio::time::timeout(WANTED, self.pieces.reserve()).await;
            let waited = began.elapsed();
            let is_wanted = [held, self.question.as_ref()].into_iter().flatten().any(Held::is_wanted);
            match place {
                Ok(Err(_)) => return Err(Gone),
                Ok(Ok(place)) if !is_wanted || self.waited + waited < WANTED_IN_ALL => break place,
                Err(_) if !is_wanted && waited < STALL => {}
                Ok(Ok(_)) | Err(_) => {
                    let seconds = (self.waited + waited).as_secs();
                    tracing::info!(seconds, "a client of the admin service was cut off: it does not take its answer");
                    return Err(Gone);
                }
            }
        };
        place.send(Piece::More(Bytes::from(piece)));
        self.waited += began.elapsed();
        Ok(())
    }

    /// Write text as a part of a JSON string.
    pub(super) async fn escaped(&mut self, text: &str, held: Option<&Held>) -> Result<(), Gone> {
        let quoted = serde_json::Value::from(text).to_string();
        self.text(&quoted[1..quoted.len() - 1], held).await
    }

    /// Whether anybody is there to take the answer.
    pub(super) fn is_gone(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Until the client has gone: it takes no more of the answer.
    pub(super) async fn gone(&self) {
        self.pieces.closed().await;
    }

    async fn end(self) {
        drop(self.question);
        // Fails when the client has gone.
        let _ = self.pieces.send(Piece::Last(Bytes::from(self.buffer))).await;
    }
}

/// The response of an answer that `write` writes; `question` is the memory of its question.
pub(super) async fn streamed<W>(
    content_type: &'static str,
    question: Option<Held>,
    write: impl FnOnce(Writer) -> W,
) -> HttpResponse
where
    W: Future<Output = Result<Writer, Gone>> + Send + 'static,
{
    let (pieces, mut taken) = mpsc::channel(1);
    let written = write(Writer { buffer: String::new(), pieces, question, waited: Duration::ZERO });
    tokio::spawn(async move {
        if let Ok(writer) = written.await {
            writer.end().await;
        }
    });
    let body = match taken.recv().await {
        Some(Piece::Last(all)) => Body::from(all),
        Some(Piece::More(first)) => chunked(first, taken),
        None => return refuse(StatusCode::SERVICE_UNAVAILABLE, "the cell is stopping"),
    };
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// The response of an answer that is made in pieces; `held` is its memory.
pub(super) async fn pieces(
    content_type: &'static str,
    pieces: impl Iterator<Item = String> + Send + 'static,
    held: Held,
) -> HttpResponse {
    let write = move |mut writer: Writer| async move {
        for piece in pieces {
            writer.text(&piece, Some(&held)).await?;
        }
        Ok(writer)
    };
    streamed(content_type, None, write).await
}

fn chunked(first: Bytes, taken: mpsc::Receiver<Piece>) -> Body {
    Body::from_stream(futures_util::stream::unfold(Some((Some(first), taken)), |left| async move {
        let (first, mut taken) = left?;
        let piece = match first {
            Some(first) => Some(Piece::More(first)),
            None => taken.recv().await,
        };
        Some(match piece {
            Some(Piece::More(bytes)) => (Ok(bytes), Some((None, taken))),
            Some(Piece::Last(bytes)) => (Ok(bytes), None),
            // The connection is closed without an end of the body.
            None => (Err(std::io::Error::other("the answer broke off")), None),
        })
    }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: an answer comes whole or is seen to be cut off, and no more of it is made than is taken. Method: bodies read in tokio's paused time.
    use super::super::access::Role;
    use super::super::answers::{ANSWER_BYTES_MAX, Answers, Length};
    use super::*;
    use axum::body::to_bytes;
    use futures_util::StreamExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    }

    /// An answer of so many lines of a kilobyte; the lines made so far.
    async fn lines(count: usize, held: Option<Held>) -> (HttpResponse, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let response = streamed("text/plain", None, move |mut writer| async move {
            for _ in 0..count {
                counted.fetch_add(1, Ordering::SeqCst);
                writer.text(&"x".repeat(1 << 10), held.as_ref()).await?;
            }
            Ok(writer)
        });
        (response.await, made)
    }

    #[test]
    fn a_short_answer_tells_its_length_and_a_long_one_comes_whole() {
        runtime().block_on(async {
            for (count, length) in [(0, Some(0)), (15, Some(15 << 10)), (1000, None)] {
                let (response, _) = lines(count, None).await;
                assert_eq!(axum::body::HttpBody::size_hint(response.body()).exact(), length);
                assert_eq!(to_bytes(response.into_body(), usize::MAX).await.unwrap().len(), count << 10);
            }
        });
    }

    #[test]
    fn a_reader_that_takes_nothing_is_cut_off_with_little_made() {
        runtime().block_on(async {
            let (response, made) = lines(1000, None).await;
            tokio::time::sleep(STALL * 2).await;
            assert!(made.load(Ordering::SeqCst) <= (3 * PIECE_BYTES) >> 10, "{made:?}");
            assert!(to_bytes(response.into_body(), usize::MAX).await.is_err(), "not as if it were whole");
        });
    }

    #[test]
    fn one_that_goes_before_its_answer_is_there_is_noticed() {
        runtime().block_on(async {
            let (noticed, seen) = tokio::sync::oneshot::channel();
            let response = streamed("text/plain", None, |writer| async move {
                writer.gone().await;
                noticed.send(()).unwrap();
                Err(Gone)
            });
            assert!(tokio::time::timeout(STALL, response).await.is_err(), "there is no answer");
            seen.await.unwrap();
        });
    }

    #[test]
    fn one_that_holds_what_others_wait_for_is_cut_off_sooner() {
        runtime().block_on(async {
            let answers = Answers::start().unwrap();
            let held = answers.make(&Role::Monitor, Length::Long, || (), |()| ANSWER_BYTES_MAX).await.unwrap().1;
            let (response, _) = lines(1000, Some(held)).await;
            let began = Instant::now();
            answers.make(&Role::Monitor, Length::Long, || (), |()| 0).await.map(drop).unwrap();
            assert!(began.elapsed() < STALL, "{:?}", began.elapsed());
            assert!(to_bytes(response.into_body(), usize::MAX).await.is_err());
        });
    }

    #[test]
    fn one_that_takes_a_piece_now_and_then_is_cut_off_while_others_wait() {
        runtime().block_on(async {
            let answers = Answers::start().unwrap();
            let held = answers.question(&Role::Monitor, usize::MAX).await.unwrap();
            let (response, _) = lines(1000, Some(held)).await;
            let taking = tokio::spawn(async move {
                let mut body = response.into_body().into_data_stream();
                while let Some(piece) = body.next().await {
                    piece?;
                    tokio::time::sleep(WANTED - Duration::from_secs(1)).await;
                }
                Ok::<_, axum::Error>(())
            });
            // Alone it may take its time.
            tokio::time::sleep(WANTED_IN_ALL * 2).await;
            assert!(!taking.is_finished());
            let began = Instant::now();
            answers.question(&Role::Monitor, 1).await.map(drop).unwrap();
            assert!(began.elapsed() <= WANTED, "{:?}", began.elapsed());
            assert!(taking.await.unwrap().is_err(), "not as if it were whole");
        });
    }

    #[test]
    fn one_that_holds_a_question_that_others_wait_for_is_cut_off() {
        runtime().block_on(async {
            let answers = Answers::start().unwrap();
            let question = answers.question(&Role::Monitor, usize::MAX).await.unwrap();
            let response = streamed("text/plain", Some(question), move |mut writer| async move {
                for _ in 0..1000 {
                    writer.text(&"x".repeat(1 << 10), None).await?;
                }
                Ok(writer)
            });
            let response = response.await;
            answers.question(&Role::Monitor, 1).await.map(drop).unwrap();
            assert!(to_bytes(response.into_body(), usize::MAX).await.is_err());
        });
    }
}
